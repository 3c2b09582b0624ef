#pragma once

#include <string>

#include "trestle/cli/plan_output.h"
#include "trestle/cli/verbs.h"
#include "trestle/plan/search/search.h"

// `trestle plan RECIPE`. Torch stays out of the verb's own source.
namespace trestle::cli {

struct RecipePlanArguments {
  std::string recipe;
  // Its devices and batch are 0 for those of the recipe.
  plan::PlanRequest request = {};
  std::string out = {};  // the best plan's recipe; empty: none is written
  PlanOutput output = {};
};

// Measures the recipe's layers, prints the ranked strategies, and writes the best one's recipe.
// Returns the exit code.
int plan_recipe(const RecipePlanArguments& arguments, const RunOptions& options);

}  // namespace trestle::cli
