#include "trestle/schedule/generators/generators.h"
#include "trestle/schedule/table_rows.h"

namespace trestle::schedule::generators {

namespace {

// All forwards, then all backwards (Huang et al. 2019, "GPipe"). Every stage keeps the activations
// of all micro-batches.
Schedule make_gpipe(const GenerateOptions& options) {
  Schedule schedule = table_in_loop(options);
  const int count = options.micro_batches;
  for (int stage = 0; stage < options.stages; ++stage) {
    auto& actions = schedule.ranks[static_cast<std::size_t>(stage)];
    for (int i = 0; i < count; ++i) actions.push_back(forward(stage, i));
    for (int i = 0; i < count; ++i) {
      const bool reverse = options.backward_order == BackwardOrder::Reverse;
      actions.push_back(backward(stage, reverse ? count - 1 - i : i));
    }
  }
  return schedule;
}

}  // namespace

Generator gpipe_schedule() {
  return {.name = "gpipe",
          .summary = "all forwards, then all backwards; allows a whole-batch loss",
          .all_forwards_first = true,
          .make = make_gpipe};
}

}  // namespace trestle::schedule::generators
