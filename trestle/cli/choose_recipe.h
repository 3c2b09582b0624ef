#pragma once

#include <cstdint>
#include <string>

#include "trestle/cli/verbs.h"
#include "trestle/plan/machine/machine.h"
#include "trestle/plan/search/planned_model.h"
#include "trestle/plan/search/search.h"

// `trestle choose` of a recipe. Torch stays out of the verb's own source.
namespace trestle::cli {

// Prints the techniques side by side, or with --json one object.
void print_techniques(const plan::PlannedModel& model, const plan::Machine& machine,
                      const plan::PlanRequest& request, bool json);

struct RecipeChoice {
  std::string recipe;
  std::string links = {};  // 'link' in [mesh]; empty = all ranks are on this machine
  int devices = 0;         // 0 = the recipe's
  int per_node = 0;        // 0 = 'ranks_per_host' of the recipe
  std::int64_t batch = 0;  // 0 = the recipe's
  double memory = 0;       // bytes of a device; 0 = the recipe's
  plan::Goal goal = plan::Goal::Time;
  plan::Kept kept = {};
  bool json = false;
};

// The answers that the questions propose for a recipe.
struct RecipeDefaults {
  int devices = 1;
  std::string devices_from;
  std::int64_t batch = 1;
  std::string link = {};  // of [mesh]
};
RecipeDefaults defaults_of_recipe(const std::string& recipe);

// Measures the recipe's layers and prints. Returns the exit code.
int choose_for_recipe(const RecipeChoice& choice, const RunOptions& options);

}  // namespace trestle::cli
