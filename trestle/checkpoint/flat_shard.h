#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trestle/checkpoint/checkpoint_folder.h"

// Internal to trestle: for ranks that shard tensors by their memory (trestle/sharding).
namespace trestle::checkpoint {

// A contiguous range of a tensor's memory: elements [begin, begin + elements.numel()), in the
// memory order given by its strides.
struct FlatShard {
  std::string name;
  at::Tensor elements;  // one-dimensional
  std::int64_t begin = 0;
  std::vector<std::int64_t> shape, strides;  // of the whole tensor
};

// The same range as boxes of the whole tensor. They are views of `elements`, to be written or read
// into. None for an empty range. Throws UsageError with the name for a tensor whose strides leave
// gaps.
std::vector<TensorShard> boxes_of(const FlatShard& shard);

}  // namespace trestle::checkpoint
