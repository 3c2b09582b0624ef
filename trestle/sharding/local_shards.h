#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trestle/comm/group.h"
#include "trestle/device/named_tensors.h"

// What one rank has of a sharded model's tensors: for saving and loading them.
namespace trestle::sharding {

struct LocalShard {
  std::string name;  // of the parameter
  // The parameter itself where it is whole; otherwise its elements [begin, begin + numel()) in memory order, in one
  // dimension, which may be none. What the optimizer steps.
  at::Tensor tensor;
  bool is_whole = true;
  std::int64_t begin = 0;
  std::vector<std::int64_t> shape, strides;  // of the whole
  // So many ranks have this part, and this rank is number `copy` of them.
  int copies = 1, copy = 0;
};

struct LocalShards {
  comm::Group ranks;  // that have the model together
  std::vector<LocalShard> parameters;
  NamedTensors buffers;  // whole; each training forward begins with those of rank 0
  bool has_unreduced_gradients = false;
};

}  // namespace trestle::sharding
