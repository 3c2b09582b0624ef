#pragma once

#include <vector>

#include "trestle/plan/schedules/find_schedule.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/layer_costs.h"

// The search of a schedule for a recipe's model.
namespace trestle::train {

// The recipe as its layers are measured for the search, with SplitBackwards::Measure: one stage on
// a rank, and no balance.
recipe::Recipe recipe_to_search(recipe::Recipe recipe);

struct SearchedSchedules {
  std::vector<int> stages_per_rank = {1, 2};  // to try, where a schedule takes more than one
  int stages = 0;                             // only schedules with this number of stages; 0 = any
  Bytes memory = 0;                           // a rank's limit; 0 = the devices' budgets
  HostTimes times = {};                       // of messages, where [mesh] has no 'link'
};

// The cut of the layers that the search simulates for this placement: the fastest within the
// devices' budgets, or else the one that comes nearest.
std::vector<int> balance_of_search(const LayerCosts& costs, const std::vector<int>& rank_of_stage);

// Cuts the model for every placement, and searches. `costs` are those of recipe_to_search(): one
// device for each rank. A balance in the recipe is kept. Throws as plan::find_schedule() and
// costs_of_cut().
plan::ScheduleAnswer find_schedule(const recipe::Recipe& recipe, const LayerCosts& costs,
                                   const SearchedSchedules& searched,
                                   const UserParts& user_parts = {});

}  // namespace trestle::train
