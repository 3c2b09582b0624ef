#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "trestle/deepspeed/config/rate.h"
#include "trestle/optim/learning_rate.h"
#include "trestle/optim/reduce_on_plateau.h"
#include "trestle/recipe/recipe.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// The length of a run that nothing ends early.
struct RunLength {
  std::int64_t epochs = 1;
  std::int64_t steps_per_epoch = 1;  // of the optimizer
  std::int64_t max_steps = 0;        // 0 = no limit

  std::int64_t steps() const;
};

// Throws UsageError for options that are invalid for a run of any length.
void check_rate(const recipe::Recipe::Optimizer& optimizer);

// Whether a schedule sets the optimizer's momentum instead of the recipe's value.
bool cycles_momentum(const recipe::Recipe::Optimizer& optimizer);

// The learning rate of [optimizer]. Its schedule follows from the step's number; the base rate,
// which `plateau` lowers, is the only state that is saved.
class RunRate {
 public:
  // Throws UsageError for a schedule that the run is too short for.
  RunRate(const recipe::Recipe::Optimizer& optimizer, const RunLength& length);
  // Replaces the recipe's schedule by one of DeepSpeed's, which counts steps.
  void follow(const deepspeed::DeepspeedSchedule& schedule);

  double at(std::int64_t step, std::int64_t epoch);  // both from 0
  // Counts a step that fp16 skipped: DeepSpeed's schedules do not advance.
  void skip_step() { ++skipped_; }

  // The momentum of the same step; nothing where the optimizer keeps its own.
  std::optional<double> momentum_at(std::int64_t step, std::int64_t epoch) const;

  // The new base where an epoch's validation metric makes `plateau` lower it.
  std::optional<double> epoch_ends(const std::optional<double>& metric);

  void save(std::map<std::string, double>& numbers) const;
  // Restores what save() stored. If the recipe's learning rate changed since, the base changes in
  // proportion.
  void load(const std::map<std::string, double>& numbers);

 private:
  double recipe_rate_;  // the recipe's learning rate
  bool by_epoch_;
  optim::LearningRate rate_;
  std::optional<optim::ReduceOnPlateau> plateau_;
  std::optional<deepspeed::DeepspeedRate> deepspeed_;
  std::int64_t skipped_ = 0;
};

}  // namespace trestle::train
