#pragma once

#include <cstdint>
#include <functional>
#include <vector>

// Ranks with fewer batches than others: Join of Python, at every level.
namespace trestle {

class Sharded;

struct JoinOptions {
  // By what the sum of gradients is divided where backward() has no weights: by all ranks, or by those that still have
  // batches. Weights say it by themselves, and a rank without batches has none.
  enum class Divide : std::uint8_t { AllRanks, RanksWithBatches };
  Divide divide = Divide::AllRanks;
  // What happens when the first rank has no batches left while others have: it follows their steps, or all ranks throw
  // StateError and can go on to something else.
  enum class FirstEnd : std::uint8_t { Follow, Throw };
  FirstEnd first_end = FirstEnd::Follow;
  // What a step does behind its reduced backward, for a rank that follows those of others: it has its part of the
  // optimizer's state to step above level None, its copy of the weights at None, and takes part in clip_grad_norm().
  // Gradients are let go by themselves where those that have batches do.
  std::function<void()> after_backward = {};
};

// Runs `batches()`, the rank's loop over what it has, perhaps nothing, and then follows the steps of the ranks that have
// more, until all have come to their end. Then all have the same weights and buffers.
//
//   const auto step = [&] {
//     sharded.clip_grad_norm(1.0);
//     optimizer->step();
//   };
//   trestle::join({&sharded}, [&] {
//     for (auto& [x, y] : loader) {
//       optimizer->zero_grad();
//       sharded.backward(torch::cross_entropy_loss(sharded.forward(x), y), static_cast<double>(x.size(0)));
//       step();
//     }
//   }, {.after_backward = step});
//
// All ranks call it, with all models that run inside: also several that take turns. Costs a small message a forward and a
// backward. A rank that follows computes nothing; at level Parameters it gathers what the others gather, in an order that is
// known before the first step but for units inside of a torch module (hooked.h): StateError there. Within no_sync() a rank
// has its backwards, and the one behind it, or none of them. What needs all ranks besides, as state(), unshard() and
// saving, comes after join(): UsageError inside. So are models with batch norms that count all ranks' samples
// (SyncBatchNorm), which a rank without samples does not run.
//
// What `batches` or `after_backward` throws ends the communication of all ranks with that reason. StateError on all ranks
// where those with batches do not do the same.
void join(const std::vector<Sharded*>& models, const std::function<void()>& batches,
          const JoinOptions& options = {});

}  // namespace trestle
