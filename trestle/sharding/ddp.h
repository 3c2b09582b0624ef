#pragma once

#include "trestle/sharding/options.h"

namespace trestle {

// DistributedDataParallel (Li et al. 2020): every rank has the whole model and the whole optimizer;
// gradients are averaged in buckets while the backward goes on. Each rank holds 16 bytes a
// parameter (fp32 weights, gradients and Adam's two averages), and a step moves 2 P bytes a rank,
// where P is what all parameters take. Both dimensions of a mesh replicate.
//
//   trestle::DeviceMesh mesh(world, {{"replicate", 4}});
//   trestle::Sharded sharded(net, mesh, trestle::ddp());
inline ShardOptions ddp(ShardOptions options = {}) {
  options.level = ShardLevel::None;
  return options;
}

}  // namespace trestle
