#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "trestle/schedule/schedule.h"
#include "trestle/simulate/costs.h"

namespace trestle::simulate {

// An action in a schedule's rows.
struct ActionPlace {
  std::size_t rank = 0, action = 0;
  bool operator==(const ActionPlace&) const = default;
};

// The actions around the messages of a tied parameter, which a lowered schedule has no actions for.
// Nothing = the schedule has no such action.
struct TiePlaces {
  // The value leaves after it, or as the step begins.
  std::optional<ActionPlace> owner_unshard = {};
  std::optional<ActionPlace> first_forward =
      {};  // of the copy's stage: the value arrives before it
  std::optional<ActionPlace> last_backward = {};  // the same: the gradient leaves after it
  std::optional<ActionPlace> taken = {};          // the gradient arrives before it
};

// One for each of the costs' ties. A frozen parameter has no gradient, and neither of the last two.
std::vector<TiePlaces> places_of_ties(const schedule::Schedule& schedule, const Costs& costs);

}  // namespace trestle::simulate
