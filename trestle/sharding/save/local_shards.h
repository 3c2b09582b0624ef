#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trestle/comm/group.h"
#include "trestle/device/named_tensors.h"

// The tensors of a sharded model that one rank holds, for saving and loading them.
namespace trestle::sharding {

class ShardEngine;

struct LocalShard {
  std::string name;  // of the parameter
  // The tensor that the optimizer steps: the parameter where it is whole, otherwise its elements
  // [begin, begin + numel()) in memory order, in one dimension, perhaps none.
  at::Tensor tensor;
  bool is_whole = true;
  std::int64_t begin = 0;
  std::vector<std::int64_t> shape, strides;  // of the whole parameter
  // The number of ranks that hold the same shard, and the number of this rank among them.
  int copies = 1, copy = 0;
};

struct LocalShards {
  comm::Group ranks;  // that hold the model together
  std::vector<LocalShard> parameters;
  NamedTensors buffers;  // whole
  bool has_unreduced_gradients = false;
};

LocalShards local_shards(const ShardEngine& engine);

}  // namespace trestle::sharding
