#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trestle/checkpoint/checkpoint_folder.h"

// Internal to trestle: for ranks that divide tensors by their memory (trestle/sharding).
namespace trestle::checkpoint {

// A contiguous part of a tensor's memory: elements [begin, begin + elements.numel()) of it, in the order in
// which its strides say that it lies there.
struct FlatPart {
  std::string name;
  at::Tensor elements;  // of one dimension
  std::int64_t begin = 0;
  std::vector<std::int64_t> shape, strides;  // of the whole tensor
};

// The same as boxes of the whole tensor, which are views of `elements`: to be written, or read into. None for
// an empty part. Throws UsageError, with its name, for a tensor whose strides leave gaps.
std::vector<TensorPart> boxes_of(const FlatPart& part);

}  // namespace trestle::checkpoint
