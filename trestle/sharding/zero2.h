#pragma once

#include "trestle/sharding/options/options.h"

namespace trestle {

// ZeRO-2 (Rajbhandari et al. 2020): as ZeRO-1, but a bucket's whole gradients are freed after their
// reduction: 4 + 12/N bytes per parameter on N ranks (fp32, Adam). A rank sends 2 P bytes per step.
//
//   trestle::DeviceMesh mesh(world, {{"shard", 4}});
//   trestle::Sharded sharded(net, mesh, trestle::zero2());
//
// How it works, where it differs from zero1.h:
// - Each gradient is copied into its bucket's flat buffer and freed: put_gradient() in
//   reduce/gradient_reducer.cpp.
// - reduce/reduction_queue.cpp reduce-scatters the bucket into a shard of its own, and the
//   collective frees the buffer.
// - At most two buckets are in flight (bound_in_flight() in reduce/reduction_queue.cpp): a rank
//   that is ahead waits, instead of holding the gradients of all buckets.
// - Backwards inside no_sync() accumulate whole gradients on each rank; with several micro-batches
//   this holds the memory of all gradients.
// - flat/flat_parameter_group.cpp adds the reduced shards to the grad() of parameters().
// - Weights are gathered before the next forward, as in zero1.h.
inline ShardOptions zero2(ShardOptions options = {}) {
  options.level = ShardLevel::Gradients;
  return options;
}

}  // namespace trestle
