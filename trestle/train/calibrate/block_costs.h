#pragma once

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "trestle/train/calibrate/device_costs.h"
#include "trestle/train/calibrate/timing.h"

// The operators of a transformer's block. Inside of the trainer. Not installed.
namespace trestle::train {

struct BlockSizes {
  std::int64_t batch = 1, tokens = 1, hidden = 1, heads = 1;
};

// The times of a GPT block on one device, each of a forward and a backward.
struct BlockCosts {
  // The written softmax with its mask and dropout, on the scores of `scores_of`.
  Timed scores;
  BlockSizes scores_of;
  // The layer norms, biases, GELU, dropouts and sums.
  Timed activations;
  BlockSizes activations_of;
  // The head's product and the loss.
  Timed head;
  BlockSizes head_of;
  std::int64_t vocabulary = 1;
  // A whole block of few numbers, in which all time is the start of kernels.
  Timed floor;
  // Whole blocks, against which the formula is held.
  std::vector<std::pair<BlockSizes, Timed>> blocks;
};

BlockCosts time_block_parts(at::Device device, at::ScalarType type, const CalibrationDepth& depth);

}  // namespace trestle::train
