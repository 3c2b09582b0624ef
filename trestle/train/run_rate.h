#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>

#include "trestle/optim/deepspeed_rate.h"
#include "trestle/optim/learning_rate.h"
#include "trestle/optim/reduce_on_plateau.h"
#include "trestle/recipe/recipe.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// How long a run is when nothing stops it.
struct RunLength {
  std::int64_t epochs = 1;
  std::int64_t steps_per_epoch = 1;  // of the optimizer
  std::int64_t max_steps = 0;        // 0 = no such end

  std::int64_t steps() const;
};

// Throws UsageError for what no run of any length could follow.
void check_rate(const recipe::Recipe::Optimizer& optimizer);

// Whether a schedule sets the optimizer's momentum, whatever the recipe's own value.
bool cycles_momentum(const recipe::Recipe::Optimizer& optimizer);

// The learning rate of [optimizer]: a schedule that follows from the step's number, and under it the
// base that `plateau` lowers, which is the one thing to be saved.
class RunRate {
 public:
  // Throws UsageError for a schedule that the run is too short for.
  RunRate(const recipe::Recipe::Optimizer& optimizer, const RunLength& length);
  // DeepSpeed's schedules count steps alone, and take the place of the recipe's.
  void follow(const optim::DeepspeedRateOptions& schedule);

  double at(std::int64_t step, std::int64_t epoch);  // both from 0
  // A step that fp16 left out, for which DeepSpeed's schedules wait.
  void leave_out_step() { ++left_out_; }

  // Of the same step; nothing where the optimizer's own stays.
  std::optional<double> momentum_at(std::int64_t step, std::int64_t epoch) const;

  // The new base where an epoch's validation metric makes `plateau` lower it.
  std::optional<double> epoch_ends(const std::optional<double>& metric);

  void save(std::map<std::string, double>& numbers) const;
  // Goes on from what was saved. Where the recipe's learning rate is another one by now, the base
  // changes in proportion.
  void load(const std::map<std::string, double>& numbers);

 private:
  double asked_;  // the recipe's learning rate
  bool by_epoch_;
  optim::LearningRate rate_;
  std::optional<optim::ReduceOnPlateau> plateau_;
  std::optional<optim::DeepspeedRate> deepspeed_;
  std::int64_t left_out_ = 0;
};

}  // namespace trestle::train
