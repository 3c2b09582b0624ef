#include "trestle/schedule/validate.h"

namespace trestle::schedule {
void validate(const Schedule&) {}
bool all_forwards_first(const Schedule& schedule) {
  for (const auto& actions : schedule.ranks) {
    bool backwards = false;
    for (const Action& action : actions) {
      switch (action.kind) {
        case Kind::OverlapForwardBackward:
          return false;
        case Kind::Backward:
        case Kind::InputGrad:
        case Kind::WeightGrad:
          backwards = true;
          break;
        case Kind::Forward:
          if (backwards) return false;
          break;
        default:
          break;
      }
    }
  }
  return true;
}
}  // namespace trestle::schedule
