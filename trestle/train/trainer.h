#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "trestle/comm/world.h"
#include "trestle/models/model.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/progress.h"
#include "trestle/train/synthesize_data.h"
#include "trestle/train/user_parts.h"

// Trains a model as a recipe says.
//
//   auto progress =
//       train::make_progress(train::ProgressStyle::Lines, train::Colours::Off, std::cout);
//   train::TrainResult result = train::train(recipe::read_recipe("recipes/unet_quick.toml"),
//                                            {.progress = progress.get()});
namespace trestle::train {

struct TrainHooks {
  Progress* progress = nullptr;  // is told what happens; null = nobody is
  // Called when everything is set up and measured, before anything of the run is written.
  std::function<void()> begins = {};
  // Asked between steps; true: save, and return an unfinished result.
  std::function<bool()> should_stop = {};
  // Called after each synthetic example that is made of missing data, with (made, all); false: what
  // was made is removed, and train() throws StateError.
  SynthesisProgress on_synthesized = {};
  std::int64_t stop_after_steps = 0;  // the same after so many steps of this call; 0 = never
  // The ranks to train on, of which this is one; null = one process alone. All call train() or resume()
  // with the same recipe; rank 0 is told what happens and writes the run's folder, which all must see.
  const World* world = nullptr;
  models::OwnModels models = {};  // models of your own, by the names that recipes use
  UserParts user_parts = {};      // the same for data sets, losses and metrics
};

// Trains from the start, in a new run folder. Saves for resume() at the end of each
// epoch, every train.save_every steps, and when it is stopped. Throws what the parts
// throw; what was saved before stays whole.
TrainResult train(const recipe::Recipe& recipe, const TrainHooks& hooks = {});

// Goes on with a run where it was saved. Losses, metrics and weights are those of the uninterrupted
// run, to the bit. `changes` are fields of the recipe as set_field() takes them: {{"train.epochs",
// "20"}}. The cut, the schedule, recomputation and devices may change, and leave the numbers as they
// are, to rounding; so may the learning rate and micro-batches, which change them. What changes is
// told to `progress`. Throws UsageError for a field that must not change in the middle of a run, and
// for fewer epochs than it has. A run that is finished is left as it is.
TrainResult resume(const std::filesystem::path& run_folder,
                   const std::vector<std::pair<std::string, std::string>>& changes = {},
                   const TrainHooks& hooks = {});

// What train() would do, on paper: the model is made, and its layers measured on small samples; step and
// peaks are extrapolated from them. The devices need not be there, nor the data where the recipe says how large an
// input is; nothing is written. Throws UsageError for what train() would refuse.
RunPlan plan_run(const recipe::Recipe& recipe, const TrainHooks& hooks = {});

}  // namespace trestle::train
