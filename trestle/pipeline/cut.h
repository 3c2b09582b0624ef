#pragma once

#include <string>
#include <vector>

#include "trestle/nn/graph.h"
#include "trestle/schedule/schedule.h"

// Where a model is cut, and which values then travel between the stages.
namespace trestle::pipeline {

using nn::ValueId;

// The layers [first_layer, last_layer) and what they exchange with the rest.
struct StagePlan {
  int first_layer = 0;
  int last_layer = 0;
  std::vector<ValueId> inputs = {};   // used here: model inputs, and values of earlier stages
  std::vector<ValueId> outputs = {};  // made here, used by later stages
  // On how many routes each output goes on, and the gradient of each input goes back (0 for an
  // input of the model).
  std::vector<int> output_routes = {};
  std::vector<int> input_routes = {};
};

struct Cut {
  std::vector<StagePlan> stages;
  // The main lane's first, in order of stages; then the skips. A lowered table has the same list.
  std::vector<schedule::Route> routes;
  std::vector<std::vector<ValueId>> route_values;  // what each route carries
  // The same as places: in plan.outputs of the route's first stage, in plan.inputs of its second.
  std::vector<std::vector<int>> route_outputs;
  std::vector<std::vector<int>> route_inputs;
  std::vector<ValueId> model_outputs;  // inputs of the last stage or made there
};

// What is wrong with a balance for a model of so many layers, as sentences.
std::vector<std::string> balance_mistakes(const std::vector<int>& balance, int layers);

// Cuts `graph` after balance[0] layers, then balance[1], ... A value that crosses to the next stage
// on the main lane is sent once, also if it is tapped; one that jumps stages gets a route of its
// own to each stage that uses it. Throws UsageError for a balance that has an entry < 1 or does not
// sum to the number of layers, and where it puts two layers that share a parameter into two stages.
Cut cut(const nn::Graph& graph, const std::vector<int>& balance);

}  // namespace trestle::pipeline
