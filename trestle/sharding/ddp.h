#pragma once

#include "trestle/sharding/options/options.h"

namespace trestle {

// DistributedDataParallel (Li et al. 2020): every rank holds the whole model and the whole
// optimizer state. Gradients are averaged in buckets during the backward. Each rank holds 16
// bytes per parameter (fp32 weights, gradients and Adam's two averages). A rank sends 2 P bytes
// per step, where P is the size of all parameters. Both dimensions of a mesh replicate.
//
//   trestle::DeviceMesh mesh(world, {{"replicate", 4}});
//   trestle::Sharded sharded(net, mesh, trestle::ddp());
//
// How it works:
// - flat/group_builder.cpp divides the parameters into buckets of 25 MiB, the last layers first
//   (flat/buckets.h). A bucket is a FlatParameterGroup with a flat buffer of gradients.
// - hooks/gradient_hooks.cpp adds a hook to each parameter's gradient accumulator.
// - reduce/gradient_reducer.cpp copies each gradient, times this rank's share of the average, to
//   its place in the bucket.
// - reduce/reduction_queue.cpp all-reduces a complete bucket. Buckets begin in one order on all
//   ranks.
// - At the end of the backward reduce/gradient_reducer.cpp waits, and points grad() of each
//   parameter into its bucket.
// - reduce/rank_handshake.cpp finds ranks that run different backwards.
// - After the first step engine/shard_engine.cpp rebuilds the buckets in the order in which
//   gradients came.
// - A communication hook (hooks/communication_hook.h) replaces the all-reduce. It is called by
//   reduce/bucket_hook.cpp.
inline ShardOptions ddp(ShardOptions options = {}) {
  options.level = ShardLevel::None;
  return options;
}

}  // namespace trestle
