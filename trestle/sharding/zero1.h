#pragma once

#include "trestle/sharding/options/options.h"

namespace trestle {

// ZeRO-1 (Rajbhandari et al. 2020): every rank holds all weights and gradients, and the optimizer
// state of its shard alone: 8 + 8/N bytes per parameter on N ranks (fp32, Adam). A rank sends
// 2 P bytes per step: gradients are reduced to the rank that holds the shard, and all ranks gather
// the new weights.
//
//   trestle::DeviceMesh mesh(world, {{"shard", 4}});
//   trestle::Sharded sharded(net, mesh, trestle::zero1());
//
// How it works:
// - flat/group_builder.cpp divides the parameters into buckets, as in ddp.h.
// - flat/flat_parameter_group.cpp moves a bucket's parameters into one flat buffer, cut into N
//   equal shards (flat/flat_layout.h). Sharded::parameters() are this rank's slices of it, which
//   the optimizer steps.
// - reduce/gradient_reducer.cpp follows the backward, as in ddp.h.
// - reduce/reduction_queue.cpp reduce-scatters a complete bucket. The reduced shard lies in the
//   bucket's gradient buffer.
// - reduce/gradient_reducer.cpp hands the reduced shards to the grad() of parameters().
// - The next forward all-gathers the flat buffers: ShardEngine::gather_stepped() in
//   engine/shard_engine.cpp.
// - flat/content_checksum.cpp finds steps of optimizers that leave no trace in a tensor's version.
inline ShardOptions zero1(ShardOptions options = {}) {
  options.level = ShardLevel::OptimizerState;
  return options;
}

}  // namespace trestle
