#include <array>

#include "trestle/schedule/generators/generators.h"
#include "trestle/schedule/v_blocks.h"

namespace trestle::schedule::generators {

namespace {

// V-Min (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory"): about a third of the
// memory of 1F1B, the same on every rank.
Schedule make_v_min(const GenerateOptions& options) {
  const int ranks = options.stages / 2;
  // No two actions of a rank are in one slot.
  const auto gaps = ranks % 3 == 0 ? std::array{2, 2, 2} : std::array{0, 0, 0};
  return stack_blocks(options, {.there = 1, .back = 1, .gaps = gaps}, 2 * ((ranks + 4) / 3));
}

}  // namespace

Generator v_min_schedule() {
  return {.name = "v_min",
          .summary = "two stages on each rank in a V: a third of the memory of 1f1b",
          .splits_backward = true,
          .stages_per_rank = 2,
          .stage_order = StageOrder::V,
          .make = make_v_min};
}

}  // namespace trestle::schedule::generators
