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
  Bytes memory = 0;                           // of a rank; 0 = no limit
  HostTimes times = {};                       // of messages, where [mesh] has no 'link'
};

// The smallest budget of the devices; 0 = none has one.
Bytes memory_of_search(const LayerCosts& costs);

// The cut into this number of stages that the search simulates.
std::vector<int> balance_of_search(const LayerCosts& costs, std::size_t stages);

// Cuts the model by the times of its layers for every placement, and searches. `costs` are those of
// recipe_to_search(): one device for each rank. A balance in the recipe is kept: other numbers of
// stages are left out. Throws as plan::find_schedule() and costs_of_cut().
plan::ScheduleAnswer find_schedule(const recipe::Recipe& recipe, const LayerCosts& costs,
                                   const SearchedSchedules& searched,
                                   const UserParts& user_parts = {});

}  // namespace trestle::train
