#include <algorithm>

#include "trestle/schedule/generators/generators.h"
#include "trestle/schedule/table_rows.h"

namespace trestle::schedule::generators {

namespace {

// Non-interleaved one-forward-one-backward (Narayanan et al. 2021, "PipeDream-Flush"). Stage s
// keeps the activations of at most min(micro-batches, stages - s) micro-batches. There may be fewer
// micro-batches than stages.
Schedule make_one_f_one_b(const GenerateOptions& options) {
  Schedule schedule = table_in_loop(options);
  const int count = options.micro_batches;
  for (int stage = 0; stage < options.stages; ++stage) {
    auto& actions = schedule.ranks[static_cast<std::size_t>(stage)];
    const int warm_up = std::min(count, options.stages - 1 - stage);
    for (int i = 0; i < warm_up; ++i) actions.push_back(forward(stage, i));
    for (int i = warm_up; i < count; ++i) {
      actions.push_back(forward(stage, i));
      actions.push_back(backward(stage, i - warm_up));
    }
    for (int i = count - warm_up; i < count; ++i) actions.push_back(backward(stage, i));
  }
  return schedule;
}

}  // namespace

Generator one_f_one_b_schedule() {
  return {.name = "1f1b",
          .summary = "one forward, one backward; keeps few activations alive",
          .make = make_one_f_one_b};
}

}  // namespace trestle::schedule::generators
