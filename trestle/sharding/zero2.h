#pragma once

#include "trestle/sharding/options.h"

namespace trestle {

// ZeRO-2 (Rajbhandari et al. 2020): as ZeRO-1, and a bucket's whole gradients are let go as soon as
// they are reduced: 4 + 12/N bytes a parameter on N ranks (fp32, Adam), and 2 P bytes a step.
//
//   trestle::DeviceMesh mesh(world, {{"shard", 4}});
//   trestle::Sharded sharded(net, mesh, trestle::zero2());
inline ShardOptions zero2(ShardOptions options = {}) {
  options.level = ShardLevel::Gradients;
  return options;
}

}  // namespace trestle
