#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trestle/models/model.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/progress.h"
#include "trestle/train/user_parts.h"

namespace trestle::train {

struct MeasureOptions {
  int warm_up = 2;  // steps before the clock runs, at least 0
  int steps = 5;    // steps that are timed, at least 1
  models::OwnModels models = {};
  UserParts user_parts = {};  // data sets, losses and metrics of the program's own
};

struct StepTimes {
  std::vector<double> seconds;   // forward and backward of each step, as the trainer reports it
  double optimizer_seconds = 0;  // what the optimizers add to a step: the median
  double predicted_seconds = 0;  // the simulator's; 0 where the recipe asks for no prediction
  double predicted_idle = 0;     // share of the makespan
  int micro_batches = 1;
  std::vector<int> balance;
  std::string devices;            // "2 virtual devices on 2 cores"
  std::vector<DevicePeak> peaks;  // empty for devices without meters
};

// Trains a few steps on the first batch of the recipe's data, and says how long they took. Makes no
// run folder and keeps nothing. Data are made where the recipe says so. Throws as train() does, and
// UsageError for numbers of steps that cannot be.
//
//   const StepTimes times = measure_steps(recipe::read_recipe("recipes/unet_quick.toml"));
//   std::cout << times.seconds[0] << " s, predicted " << times.predicted_seconds << "\n";
StepTimes measure_steps(const recipe::Recipe& recipe, const MeasureOptions& options = {});

}  // namespace trestle::train
