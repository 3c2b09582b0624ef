#pragma once

#include "trestle/sharding/options.h"

namespace trestle {

// FSDP (Zhao et al. 2023), also known as ZeRO-3: each rank has its part of everything, and the
// weights of one unit after the other are put together where it runs: 16/N bytes a parameter on N
// ranks (fp32, Adam) and two units' weights and gradients besides. A step moves 3 P bytes a rank; 2
// P with reshard_after_forward = false, which keeps all weights between forward and backward; with
// reshard_after_forward = k a P of the three moves among k neighbours alone.
//
//   trestle::DeviceMesh mesh(world, {{"shard", 4}});
//   trestle::Sharded sharded(net, mesh, trestle::fsdp());
inline ShardOptions fsdp(ShardOptions options = {}) {
  options.level = ShardLevel::Parameters;
  return options;
}

}  // namespace trestle
