#include <array>

#include "trestle/schedule/generators/generators.h"
#include "trestle/schedule/v_blocks.h"

namespace trestle::schedule::generators {

namespace {

// V-Half (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory"): about half of the
// memory of 1F1B, the same on every rank.
Schedule make_v_half(const GenerateOptions& options) {
  const int ranks = options.stages / 2;
  // No two actions of a rank are in one slot.
  const auto gaps = ranks % 2 == 0 ? std::array{3, 3, 1} : std::array{0, 0, 1};
  return stack_blocks(options, {.there = 2, .back = 1, .gaps = gaps}, 2 * ((ranks + 2) / 2));
}

}  // namespace

Generator v_half_schedule() {
  return {.name = "v_half",
          .summary = "two stages on each rank in a V: half the memory of 1f1b",
          .splits_backward = true,
          .stages_per_rank = 2,
          .stage_order = StageOrder::V,
          .make = make_v_half};
}

}  // namespace trestle::schedule::generators
