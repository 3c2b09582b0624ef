#pragma once

#include <functional>

#include "trestle/nn/layers.h"
#include "trestle/nn/loss.h"
#include "trestle/plan/transformer_traffic.h"
#include "trestle/tensor_parallel/tensor_ranks.h"

namespace trestle::train {

// The row "tensor" of `trestle levels`: all ranks split the layers of one model, and each of them
// has the whole batch.
struct TensorLevel {
  std::function<nn::Layers(const tensor_parallel::TensorRanks&)> make;
  // A loss of the model's scores, which may be shards, and target ids [N, T].
  std::function<nn::Loss(const tensor_parallel::TensorRanks&)> loss;
  plan::StepTraffic traffic;  // of a step, by formula
  // CheckpointLayersOptions::split_arguments of LevelsOptions::checkpoint.
  bool splits_recomputed = false;
};

}  // namespace trestle::train
