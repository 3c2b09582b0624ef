#pragma once

#include <string>
#include <vector>

#include "trestle/recipe/recipe.h"
#include "trestle/train/data_sets/user_parts.h"
#include "trestle/train/layer_costs.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// The schedule that a run takes for "auto".
struct ChosenSchedule {
  // With the schedule's name, or "auto" and its table; and with the balance that it was found for.
  recipe::Recipe recipe;
  std::vector<std::string> reasons;  // the schedule and what it trades, as lines
};

// Searches the schedule of a recipe with schedule = "auto". `costs` are those of
// recipe_to_search(recipe), and `times` those of messages on one host. A balance in the recipe and
// its number of stages on a rank are kept. Throws UsageError where nothing fits, and as
// find_schedule() of schedule_search.h.
ChosenSchedule choose_schedule(const recipe::Recipe& recipe, const LayerCosts& costs,
                               const HostTimes& times, const UserParts& user_parts);

}  // namespace trestle::train
