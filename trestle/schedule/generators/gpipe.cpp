#include "trestle/schedule/generators/generators.h"

namespace trestle::schedule::generators {

Schedule gpipe(const GenerateOptions& options) {
  Schedule schedule = one_stage_per_rank(options);
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

}  // namespace trestle::schedule::generators
