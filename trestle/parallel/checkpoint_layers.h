#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trestle/nn/graph.h"

namespace trestle {

// Activation checkpointing inside a pipeline's stage: each named layer is recomputed in its own
// backward, and keeps only its inputs until then (recompute/checkpoint.h). It works on one stage
// too, and beside PipelineOptions::recompute, which recomputes whole stages.
//
//   trestle::Pipeline pipeline(
//       net, {.micro_batches = 4, .wrap_layers = trestle::checkpoint_layers({"down1", "up"})});
//
// "layers" names all layers that have parameters; "up" names the layer "up" and all whose names
// begin with "up.", such as those of a torch::nn::Sequential, which are recomputed one by one. Loss
// and gradients stay the same. The wrapped graph throws UsageError, with the
// nearest name, for a name that matches no layer; and for a layer that writes to its own input when
// it runs.
std::function<void(nn::Graph&)> checkpoint_layers(std::vector<std::string> names);

}  // namespace trestle
