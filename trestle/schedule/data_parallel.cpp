#include "trestle/schedule/data_parallel.h"

#include <algorithm>

namespace trestle::schedule {
namespace {

Action stage_action(Kind kind, int stage) {
  return {.kind = kind, .stage = static_cast<std::int16_t>(stage)};
}

bool is_backward(const Action& action) {
  return action.kind == Kind::Backward || action.kind == Kind::InputGrad ||
         action.kind == Kind::WeightGrad;
}

std::vector<Action> with_reductions(const std::vector<Action>& row) {
  std::vector<Action> result;
  std::vector<int> used;   // stages in the order of their first action
  std::vector<int> ended;  // stages in the order of their last backward
  for (const Action& action : row) {
    const int stage = action.stage;
    if (is_compute(action.kind) && std::find(used.begin(), used.end(), stage) == used.end()) {
      used.push_back(stage);
      result.push_back(stage_action(Kind::Unshard, stage));
    }
    const bool is_pair = action.kind == Kind::OverlapForwardBackward;
    if (is_pair || is_backward(action)) {
      const int ending = is_pair ? action.partner_stage : stage;
      std::erase(ended, ending);
      ended.push_back(ending);
    }
    result.push_back(action);
  }
  for (const int stage : ended) {
    result.push_back(stage_action(Kind::ReduceGrad, stage));
    result.push_back(stage_action(Kind::Reshard, stage));
  }
  return result;
}

}  // namespace

Schedule add_reductions(Schedule lowered) {
  for (auto& row : lowered.ranks) row = with_reductions(row);
  return lowered;
}

}  // namespace trestle::schedule
