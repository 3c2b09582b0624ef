#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trestle/comm/world.h"
#include "trestle/models/model.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/data_sets/user_parts.h"
#include "trestle/train/progress/progress.h"

namespace trestle::train {

struct MeasureOptions {
  int warm_up = 2;  // steps that are not timed, at least 0
  int steps = 5;    // steps that are timed, at least 1
  // The ranks that run the steps, including this one; null = one process alone. All of them call
  // measure_steps() with the same recipe, and get the peaks of all ranks.
  const World* world = nullptr;
  models::OwnModels models = {};
  UserParts user_parts = {};  // the program's data sets, losses and metrics
};

struct StepTimes {
  double step_seconds() const;  // the median of `seconds`, with the update

  std::vector<double> seconds;   // forward and backward of each step, as the trainer reports it
  double optimizer_seconds = 0;  // of the update at the end of a step: the median
  double predicted_seconds = 0;  // of `seconds`, by the simulator; 0 = predict is off
  double predicted_idle = 0;     // share of the makespan
  int micro_batches = 1;
  std::string schedule;  // its name; of a recipe with "auto" what the search took
  std::vector<int> balance;
  std::string devices;            // "2 virtual devices on 2 cores"
  std::vector<DevicePeak> peaks;  // empty for devices without meters
};

// Trains a few steps on the first batch of the recipe's data and returns their durations. Writes no
// run folder; synthesizes data where the recipe sets it. Throws as train(), and UsageError for
// invalid numbers of steps.
//
//   const StepTimes times = measure_steps(recipe::read_recipe("recipes/unet_quick.toml"));
//   std::cout << times.seconds[0] << " s, predicted " << times.predicted_seconds << "\n";
StepTimes measure_steps(const recipe::Recipe& recipe, const MeasureOptions& options = {});

}  // namespace trestle::train
