#pragma once

#include <functional>
#include <vector>

#include "trestle/sharding/join/join_options.h"

// Training with uneven numbers of batches per rank: Python's torch.distributed.algorithms.join, at
// every level.
namespace trestle {

class Sharded;

// Runs `batches()`, this rank's loop over its batches, perhaps none. A rank whose loop has ended
// shadows the active ranks: it takes part in their communication with zeros, until all loops have
// ended. Then all ranks have the same weights and buffers.
//
//   const auto step = [&] {
//     sharded.clip_grad_norm(1.0);
//     optimizer->step();
//   };
//   trestle::join({&sharded}, [&] {
//     for (auto& [x, y] : loader) {
//       optimizer->zero_grad();
//       const auto samples = static_cast<double>(x.size(0));
//       sharded.backward(torch::cross_entropy_loss(sharded.forward(x), y), samples);
//       step();
//     }
//   }, {.after_backward = step});
//
// All ranks call it, with all models that run inside, which may take turns. It costs a small
// message for each forward and each backward. A shadowing rank computes nothing. At level
// Parameters it gathers what the active ranks gather, in an order that is known before the first
// step, except for Hooked modules (hooks/hooked.h), where it throws StateError in the first step.
// Inside no_sync() a rank runs all of its backwards and the one after it, or none of them.
//
// Throws UsageError for calls inside that need all ranks, such as state(), unshard() and saving:
// make them after join(). Throws UsageError for models with batch norms over all ranks' samples
// (SyncBatchNorm), which a shadowing rank does not run. Throws StateError on all ranks where the
// active ranks make different calls. An exception of `batches` or `after_backward` ends the
// communication of all ranks with that reason.
void join(const std::vector<Sharded*>& models, const std::function<void()>& batches,
          const JoinOptions& options = {});

}  // namespace trestle
