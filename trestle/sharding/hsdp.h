#pragma once

#include "trestle/sharding/options/options.h"

namespace trestle {

// HSDP, hybrid sharding (Zhao et al. 2023): FSDP along the dimension `shard` of a mesh, replicated
// along `replicate`. Weights are gathered within a row of the mesh. Gradients are reduced within
// the row, and each rank's shard is summed over its column. Each rank holds 16/S bytes per
// parameter on S ranks of a row, and sends 3 P bytes within the row and 2 P/S across per step. HSDP
// includes data parallelism: nothing needs to be wrapped around it.
//
//   trestle::DeviceMesh mesh(world, {{"replicate", 2}, {"shard", 4}});
//   trestle::Sharded sharded(net, mesh, trestle::hsdp());
//
// How it works, where it differs from fsdp.h:
// - options/rank_groups.cpp makes the groups of ranks along both dimensions. A mesh with both makes
//   any level hybrid.
// - reduce/reduction_queue.cpp begins the all-reduce of a shard over its column when the
//   reduce-scatter within the row is done (sum_over_replicas()). The order is that of the
//   reduce-scatters, on all ranks.
// - A gradient is the mean over all ranks of both dimensions.
// - clip_grad_norm() sums norms over the row alone: the columns hold the same shards.
// - Each forward begins with the buffers of the mesh's first rank (flat/broadcast_tensors.cpp).
// - The ranks of a column hold the same shards. They take turns in writing them to a checkpoint
//   (save/save_groups.cpp).
inline ShardOptions hsdp(ShardOptions options = {}) {
  options.level = ShardLevel::Parameters;
  return options;
}

}  // namespace trestle
