#include "trestle/schedule/generators/generators.h"
#include "trestle/schedule/interleave.h"

namespace trestle::schedule::generators {

namespace {

// ZB-H2 (Qi et al. 2023, "Zero Bubble Pipeline Parallelism"): twice the forwards before the first
// backward, and W twice as late. No bubble between a rank's first and last action if F, I and W
// take the same time and there are at least 2p - 1 micro-batches.
Schedule make_zb_h2(const GenerateOptions& options) {
  return interleave(options, {.warm_up_per_rank = 2, .splits = true, .late_weight_grads = 2});
}

}  // namespace

Generator zb_h2_schedule() {
  return {.name = "zb_h2",
          .summary = "split backwards fill the bubble of 1f1b with twice its memory",
          .splits_backward = true,
          .make = make_zb_h2};
}

}  // namespace trestle::schedule::generators
