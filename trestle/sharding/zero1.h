#pragma once

#include "trestle/sharding/options.h"

namespace trestle {

// ZeRO-1 (Rajbhandari et al. 2020): every rank has all weights and gradients, and the optimizer's
// state of its part alone: 8 + 8/N bytes a parameter on N ranks (fp32, Adam). A step moves 2 P
// bytes a rank: gradients are reduced to the rank that has the part, and the new weights gathered
// by all.
//
//   trestle::DeviceMesh mesh(world, {{"shard", 4}});
//   trestle::Sharded sharded(net, mesh, trestle::zero1());
inline ShardOptions zero1(ShardOptions options = {}) {
  options.level = ShardLevel::OptimizerState;
  return options;
}

}  // namespace trestle
