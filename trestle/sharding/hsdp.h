#pragma once

#include "trestle/sharding/options.h"

namespace trestle {

// HSDP, hybrid sharding (Zhao et al. 2023): FSDP over the dimension `shard` of a mesh, repeated
// along `replicate`. Weights are gathered within a row of the mesh only; of the gradients, reduced
// within it, each rank's part is summed over its column. Each rank holds 16/S bytes a parameter on
// S ranks of a row; a step moves 3 P within the row and 2 P/S across. There is no need to wrap it
// in data parallelism once more: it is that already.
//
//   trestle::DeviceMesh mesh(world, {{"replicate", 2}, {"shard", 4}});
//   trestle::Sharded sharded(net, mesh, trestle::hsdp());
inline ShardOptions hsdp(ShardOptions options = {}) {
  options.level = ShardLevel::Parameters;
  return options;
}

}  // namespace trestle
