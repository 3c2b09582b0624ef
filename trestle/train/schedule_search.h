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

// Cuts the model by the times of its layers for every placement, and searches. `costs` are those of
// recipe_to_search(): one device for each rank. The devices' budgets count where `memory` is 0.
// Throws as plan::find_schedule() and costs_of_cut().
plan::ScheduleAnswer find_schedule(const recipe::Recipe& recipe, const LayerCosts& costs,
                                   const std::vector<int>& stages_per_rank, Bytes memory,
                                   const UserParts& user_parts = {});

}  // namespace trestle::train
