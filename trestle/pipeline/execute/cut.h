#pragma once

#include <string>
#include <vector>

#include "trestle/nn/graph.h"
#include "trestle/schedule/schedule.h"

// The cut of a model into stages, and the values that cross between them.
namespace trestle::pipeline {

using nn::ValueId;

// The layers [first_layer, last_layer) of a stage, and the values it exchanges.
struct StagePlan {
  int first_layer = 0;
  int last_layer = 0;
  std::vector<ValueId> inputs = {};   // used here: inputs of the model, values of earlier stages
  std::vector<ValueId> outputs = {};  // made here, used by later stages
  // [output] how many routes carry it; [input] how many routes carry its gradient back (0 for an
  // input of the model).
  std::vector<int> output_routes = {};
  std::vector<int> input_routes = {};
};

// A parameter that layers of another stage use too. That stage has a copy of it.
struct StageTie {
  int owner = 0;  // the layer that owns the parameter
  std::string parameter = {};
  // From the owner's stage to the copy's: the value's way. The gradient's is the reverse.
  schedule::Route route = {};
  std::vector<nn::ParameterTie> uses = {};  // by the layers of the copy's stage
};

struct Cut {
  std::vector<StagePlan> stages;
  // The main lane's routes, in the order of stages, then the skips'. A lowered table has the same.
  std::vector<schedule::Route> routes;
  std::vector<std::vector<ValueId>> route_values;  // [route] what it carries
  // The same as indices: into plan.outputs of the route's first stage, and plan.inputs of its
  // second.
  std::vector<std::vector<int>> route_outputs;
  std::vector<std::vector<int>> route_inputs;
  std::vector<ValueId> model_outputs;  // inputs of the last stage, or made there
  std::vector<StageTie> ties;
};

// The mistakes in a balance for a model of `layers` layers, one sentence each.
std::vector<std::string> balance_mistakes(const std::vector<int>& balance, int layers);

// For several pipelines that share a batch: throws UsageError if a stage uses a parameter that a
// later stage owns. That stage's gradients would be reduced before this one's are there.
void refuse_late_owners(const nn::Graph& graph, const std::vector<int>& balance);

// Cuts `graph` into stages of balance[0] layers, balance[1], ... A value that the next stage uses
// on the main lane is sent once, even if a skip uses it there too. A value that skips stages has a
// route of its own to each stage that uses it. Throws UsageError for a balance with an entry < 1,
// or one that does not sum to the number of layers.
Cut cut(const nn::Graph& graph, const std::vector<int>& balance);

}  // namespace trestle::pipeline
