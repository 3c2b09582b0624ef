#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "trestle/cli/plan_output.h"
#include "trestle/cli/plan_verify.h"
#include "trestle/cli/verbs.h"
#include "trestle/plan/machine/machine.h"
#include "trestle/plan/search/search.h"

// `trestle plan RECIPE`. Torch stays out of the verb's own source.
namespace trestle::cli {

struct RecipePlanArguments {
  std::string recipe;
  // Its devices and batch are 0 for those of the recipe.
  plan::PlanRequest request = {};
  // Otherwise those of the recipe's [plan] count; so do its memory and number of devices.
  bool keep_is_given = false, goal_is_given = false;
  // A file whose messages and optimizers count; nothing: they are measured here.
  std::optional<plan::Machine> machine = {};
  std::string machine_file = {};
  std::string out = {};  // the best plan's recipe; empty: none is written
  PlanOutput output = {};
  std::int64_t cores = 0;      // that the devices of a node share; 0 = this machine's
  int nodes = 0;               // that hold the devices; 0 = one, or the hosts of 'link' in [mesh]
  std::string residuals = {};  // a file that gives the range of a prediction; empty: none
  VerifyArguments verify = {};
};

// Measures the recipe's layers, prints the ranked strategies, writes the best one's recipe, and
// runs the best ones. Returns the exit code.
int plan_recipe(const RecipePlanArguments& arguments, const RunOptions& options);

}  // namespace trestle::cli
