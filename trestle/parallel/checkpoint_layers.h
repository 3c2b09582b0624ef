#pragma once

#include <functional>
#include <string>
#include <vector>

#include "trestle/nn/graph.h"
#include "trestle/tensor_parallel/tensor_ranks.h"

namespace trestle {

struct CheckpointLayersOptions {
  // Tensor ranks that share what a layer keeps: each keeps an even share of the numbers of its
  // floating-point arguments, and gathers them before the recomputation. It takes the size of the
  // arguments / ranks, and sends one all-gather of each argument in the backward. Gradients are the
  // same to the bit. One rank alone keeps all.
  //
  // The arguments must be equal on all ranks, as those of a transformer's blocks are without
  // sequence parallelism. The ranks compare each layer's arguments in its first forward, and throw
  // UsageError with the layer's name. On paper the gathered values are wrong, and so are gradients.
  tensor_parallel::TensorRanks split_arguments = {};
};

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
std::function<void(nn::Graph&)> checkpoint_layers(std::vector<std::string> names,
                                                  CheckpointLayersOptions options = {});

}  // namespace trestle
