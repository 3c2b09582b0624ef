#include "trestle/sharding/unshard/unit_order.h"

#include <algorithm>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::sharding {

void UnitOrder::expect(const std::vector<std::size_t>& units) {
  for (auto unit = units.begin(); unit != units.end(); ++unit) {
    expected_.push_back({.unit = *unit, .begins = true});
    const bool keep = std::find(unit + 1, units.end(), *unit) != units.end();
    expected_.push_back({.unit = *unit, .begins = false, .keep = keep});
  }
}

void UnitOrder::take_expected() {
  events_ = expected_;
  known_ = true;
}

void UnitOrder::begin_forward() {
  if (!known_) events_.clear();
  place_ = 0;
}

std::size_t UnitOrder::note(const Event& event) {
  if (!known_) {
    events_.push_back(event);
    return place_++;
  }
  const bool past_end = place_ >= events_.size();
  if (!past_end && events_[place_] == event) return place_++;
  const Event& first = past_end ? event : events_[place_];
  const std::string before =
      past_end ? "had no further unit"
               : text(first.begins ? "began" : "ended", " unit '", names_[first.unit], "'");
  throw StateError(
      text("unit '", names_[event.unit], event.begins ? "' begins" : "' ends",
           " where the first step ", before,
           !past_end && first.trains != event.trains ? " in another grad mode" : ""),
      {.hint = "At level Parameters a model must run its units in the same order in every step."});
}

}  // namespace trestle::sharding
