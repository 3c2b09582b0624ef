#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trestle/comm/world.h"
#include "trestle/models/model.h"
#include "trestle/precision/layer_speed.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/data_sets/synthesize_data.h"
#include "trestle/train/data_sets/user_parts.h"
#include "trestle/train/progress/progress.h"

// Trains a model as a recipe describes.
//
//   auto progress =
//       train::make_progress(train::ProgressStyle::Lines, train::Colours::Off, std::cout);
//   train::TrainResult result = train::train(recipe::read_recipe("recipes/unet_quick.toml"),
//                                            {.progress = progress.get()});
namespace trestle::train {

// The choice of a planner for a recipe with `auto` in [plan].
struct ChosenPlan {
  recipe::Recipe recipe;                  // with the plan in [mesh], [pipeline] and [devices]
  std::vector<std::string> reasons = {};  // the plan and why it was chosen, as lines
  std::string report = {};                // the same as a JSON object
};

struct TrainHooks {
  Progress* progress = nullptr;  // gets the reports of the run; null: none
  // Called after the set-up and its measurements, before anything of the run is written.
  std::function<void()> begins = {};
  // Called between steps; true saves and returns an unfinished result.
  std::function<bool()> should_stop = {};
  // Called after each synthetic example that replaces missing data, with (written, total). False
  // removes what was written, and train() throws StateError.
  SynthesisProgress on_synthesized = {};
  std::int64_t stop_after_steps = 0;  // stops after N steps of this call; 0 = never
  // The ranks to train on, including this one; null = one process alone. All ranks call train() or
  // resume() with the same recipe. Rank 0 reports progress and writes the run's folder, which all
  // ranks must see.
  const World* world = nullptr;
  models::OwnModels models = {};  // models of the program, by their names in recipes
  UserParts user_parts = {};      // its data sets, losses and metrics
  // Plans a recipe with `auto` in [plan], before anything else of the run. All ranks call it and
  // get the same. A resumed run is not planned again. Null: train() refuses such a recipe.
  // `trestle train` sets it.
  std::function<ChosenPlan(const recipe::Recipe&)> choose_plan = {};
  std::string plan_report = {};  // of a plan that was chosen before: saved as plan.json; or empty
  // Measures a layer, where [train] has 16 bits, to report a slow precision; null:
  // precision::measure_layer_speed().
  std::function<std::optional<precision::LayerSpeed>(const nn::Layers&)> layer_speed = {};
};

// Trains from the start in a new run folder. Saves a checkpoint for resume() at the end of each
// epoch, every train.save_every steps, and when it is stopped. Errors leave the last checkpoint
// intact.
TrainResult train(const recipe::Recipe& recipe, const TrainHooks& hooks = {});

// Resumes a run from its checkpoint. Losses, metrics and weights equal those of the uninterrupted
// run, to the bit. `changes` are fields of the recipe as for set_field(): {{"train.epochs", "20"}}.
// The cut, the schedule, recomputation and devices may change and keep the results, to rounding.
// The learning rate and micro-batches may change too, and change the results. Changes are reported
// to `progress`. Throws UsageError for a field that must not change, and for fewer epochs than are
// done. A finished run is not changed.
TrainResult resume(const std::filesystem::path& run_folder,
                   const std::vector<std::pair<std::string, std::string>>& changes = {},
                   const TrainHooks& hooks = {});

// Plans what train() would do without training: the model is made and its layers are measured on
// small samples, from which the duration of a step and the peaks are extrapolated. The devices need
// not exist, nor the data if the recipe sets the size of an input. Writes nothing. Throws
// UsageError for what train() would refuse.
RunPlan plan_run(const recipe::Recipe& recipe, const TrainHooks& hooks = {});

}  // namespace trestle::train
