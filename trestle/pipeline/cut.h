#pragma once

#include <compare>
#include <vector>

#include "trestle/nn/graph.h"
#include "trestle/schedule/schedule.h"

// Where a model is cut, and which values then travel between the stages.
namespace trestle::pipeline {

// One value of the model: an output of a layer, or (layer == nn::model_input) an input of the
// model.
struct ValueId {
  int layer = nn::model_input;
  int output = 0;
  friend auto operator<=>(const ValueId&, const ValueId&) = default;
};

// The layers [first_layer, last_layer) and what they exchange with the rest.
struct StagePlan {
  int first_layer = 0;
  int last_layer = 0;
  std::vector<ValueId>
      inputs;  // made elsewhere, used here: model inputs and values of earlier stages
  std::vector<ValueId> outputs;  // made here, used by later stages
};

struct Cut {
  std::vector<StagePlan> stages;
  std::vector<schedule::Route> routes;  // the main lane's first, in order of stages; then the skips
  std::vector<std::vector<ValueId>> route_values;  // what each route carries
  std::vector<ValueId> model_outputs;              // inputs of the last stage or made there

  std::vector<schedule::Route> skips() const;
  std::vector<bool> main_lane() const;  // for each stage: is there a route to the next one?
};

// Cuts `graph` after balance[0] layers, then balance[1], ... A value that crosses to the next stage
// on the main lane is sent once, also if it is tapped; one that jumps stages gets a route of its
// own to each stage that uses it. Throws UsageError for a balance that has an entry < 1 or does not
// sum to the number of layers.
Cut cut(const nn::Graph& graph, const std::vector<int>& balance);

}  // namespace trestle::pipeline
