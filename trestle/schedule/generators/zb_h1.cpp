#include "trestle/schedule/generators/generators.h"
#include "trestle/schedule/interleave.h"

namespace trestle::schedule::generators {

namespace {

// ZB-H1 (Qi et al. 2023, "Zero Bubble Pipeline Parallelism"): rank r delays W by r micro-batches.
// Each rank keeps what 1F1B keeps on the first one. Its bubble is a third of that of 1F1B if F, I
// and W take the same time.
Schedule make_zb_h1(const GenerateOptions& options) {
  return interleave(options, {.splits = true, .late_weight_grads = 1});
}

}  // namespace

Generator zb_h1_schedule() {
  return {.name = "zb_h1",
          .summary = "split backwards fill two thirds of the bubble of 1f1b with its memory",
          .splits_backward = true,
          .make = make_zb_h1};
}

}  // namespace trestle::schedule::generators
