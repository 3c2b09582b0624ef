#pragma once

#include <optional>
#include <string>

#include "trestle/cli/plan_output.h"
#include "trestle/cli/verbs.h"
#include "trestle/plan/machine/machine.h"
#include "trestle/plan/search/search.h"

// `trestle plan RECIPE`. Torch stays out of the verb's own source.
namespace trestle::cli {

struct RecipePlanArguments {
  std::string recipe;
  // Its devices and batch are 0 for those of the recipe.
  plan::PlanRequest request = {};
  // A file whose messages and optimizers count; nothing: they are measured here.
  std::optional<plan::Machine> machine = {};
  std::string machine_file = {};
  std::string out = {};  // the best plan's recipe; empty: none is written
  PlanOutput output = {};
};

// Measures the recipe's layers, prints the ranked strategies, and writes the best one's recipe.
// Returns the exit code.
int plan_recipe(const RecipePlanArguments& arguments, const RunOptions& options);

}  // namespace trestle::cli
