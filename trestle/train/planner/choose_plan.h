#pragma once

#include <functional>
#include <string>

#include "trestle/train/trainer.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

struct ChooseOptions {
  // The ranks that a launcher has started. All of them call choose_plan(), and the plan uses all of
  // them; null = this process plans for ranks that it has not started yet.
  const World* world = nullptr;
  // Without a world: the number of ranks that the plan uses; 0 = it may use fewer devices than
  // there are.
  int ranks = 0;
  // Gets a line before each measurement of the layers, which may take long; may be empty.
  std::function<void(const std::string&)> says = {};
};

// Chooses the plan of a recipe with `auto` in [plan]: measures its layers on this machine, and
// simulates every strategy (PlannedRecipe). Over ranks the first one measures and searches, and all
// get its choice. The recipe that it returns has no [plan] any more. Throws UsageError for what
// train() would refuse, and with the reasons of `trestle plan` if nothing fits.
//
//   TrainHooks hooks;
//   hooks.choose_plan = [&](const recipe::Recipe& given) { return choose_plan(given, hooks, {}); };
ChosenPlan choose_plan(const recipe::Recipe& recipe, const TrainHooks& hooks,
                       const ChooseOptions& options);

// The recipe with the usual values of all that a plan sets.
recipe::Recipe without_plan(recipe::Recipe recipe);

}  // namespace trestle::train
