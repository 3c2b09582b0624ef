#include "trestle/train/optimizers/run_rate.h"

#include <algorithm>
#include <array>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::train {

namespace {

// The length of a schedule: all of the run unless schedule_length is set.
std::int64_t schedule_length(const recipe::Recipe::Optimizer& optimizer, const RunLength& length) {
  if (optimizer.schedule_length > 0) return optimizer.schedule_length;
  const std::int64_t run = optimizer.schedule_by == "epoch" ? length.epochs : length.steps();
  constexpr std::array with_length = {"cosine", "cosine_decay", "linear_decay", "one_cycle"};
  const bool needed =
      std::ranges::find(with_length, optimizer.learning_rate_schedule) != with_length.end();
  if (needed && optimizer.warm_up >= run)
    throw UsageError(text("the run has ", run, " ", optimizer.schedule_by, "s, and warm_up = ",
                          optimizer.warm_up, " in [optimizer] leaves none for the schedule '",
                          optimizer.learning_rate_schedule, "'"),
                     {.hint = "Make warm_up smaller or the run longer, or give schedule_length."});
  return std::max<std::int64_t>(run - optimizer.warm_up, 1);
}

optim::LearningRateOptions rate_options(const recipe::Recipe::Optimizer& optimizer,
                                        const RunLength& length) {
  return {.schedule = optimizer.learning_rate_schedule,
          .factor = optimizer.decay_factor,
          .every = optimizer.decay_every,
          .milestones = optimizer.milestones,
          .length = schedule_length(optimizer, length),
          .lowest = optimizer.min_learning_rate,
          .rise = optimizer.one_cycle_rise,
          .first_divisor = optimizer.one_cycle_first_divisor,
          .last_divisor = optimizer.one_cycle_last_divisor,
          .cycle_momentum = optimizer.one_cycle_momentum,
          .lowest_momentum = optimizer.one_cycle_lowest_momentum,
          .highest_momentum = optimizer.one_cycle_highest_momentum,
          .warm_up = optimizer.warm_up,
          .warm_up_from = optimizer.warm_up_from};
}

optim::PlateauOptions plateau_options(const recipe::Recipe::Optimizer& optimizer) {
  using Threshold = optim::PlateauOptions::Threshold;
  return {.factor = optimizer.plateau_factor,
          .patience = static_cast<int>(optimizer.plateau_patience),
          .threshold = optimizer.plateau_threshold,
          .threshold_mode = optimizer.plateau_threshold_mode == "absolute" ? Threshold::Absolute
                                                                           : Threshold::Relative,
          .cooldown = static_cast<int>(optimizer.plateau_cooldown),
          .lowest = optimizer.min_learning_rate};
}

}  // namespace

std::int64_t RunLength::steps() const {
  const std::int64_t all = epochs * steps_per_epoch;
  return max_steps > 0 ? std::min(all, max_steps) : all;
}

bool cycles_momentum(const recipe::Recipe::Optimizer& optimizer) {
  return optimizer.learning_rate_schedule == "one_cycle" && optimizer.one_cycle_momentum;
}

void check_rate(const recipe::Recipe::Optimizer& optimizer) {
  constexpr std::int64_t long_enough = 2'000'000'000;  // no warm-up is longer
  const RunRate rate(optimizer, {.epochs = long_enough});
}

RunRate::RunRate(const recipe::Recipe::Optimizer& optimizer, const RunLength& length)
    : recipe_rate_(optimizer.learning_rate),
      by_epoch_(optimizer.schedule_by == "epoch"),
      rate_(optimizer.learning_rate, rate_options(optimizer, length)) {
  if (optimizer.plateau) plateau_.emplace(plateau_options(optimizer));
}

void RunRate::follow(const deepspeed::DeepspeedSchedule& schedule) {
  deepspeed_.emplace(recipe_rate_, schedule);
}

double RunRate::at(std::int64_t step, std::int64_t epoch) {
  if (deepspeed_) return deepspeed_->at(step - skipped_);
  return rate_.at(by_epoch_ ? epoch : step);
}

std::optional<double> RunRate::momentum_at(std::int64_t step, std::int64_t epoch) const {
  if (deepspeed_) return deepspeed_->momentum_at(step - skipped_);
  return rate_.momentum_at(by_epoch_ ? epoch : step);
}

std::optional<double> RunRate::epoch_ends(const std::optional<double>& metric) {
  if (!plateau_ || !metric || !plateau_->step(*metric)) return std::nullopt;
  const double lower = plateau_->reduced(rate_.base());
  if (lower == rate_.base()) return std::nullopt;
  rate_.set_base(lower);
  return lower;
}

void RunRate::save(std::map<std::string, double>& numbers) const {
  numbers["learning_rate"] = recipe_rate_;
  numbers["base_learning_rate"] = rate_.base();
  if (deepspeed_) numbers["steps_left_out"] = static_cast<double>(skipped_);
  if (!plateau_) return;
  const auto& state = plateau_->state();
  numbers["plateau_best"] = state.best;
  numbers["plateau_has_best"] = state.has_best ? 1 : 0;
  numbers["plateau_bad_steps"] = state.bad_steps;
  numbers["plateau_cooling"] = state.cooling;
}

void RunRate::load(const std::map<std::string, double>& numbers) {
  const auto number = [&](const char* name) {
    const auto found = numbers.find(name);
    return found == numbers.end() ? 0.0 : found->second;
  };
  skipped_ = static_cast<std::int64_t>(number("steps_left_out"));
  const double before = number("learning_rate"), base = number("base_learning_rate");
  if (before > 0) rate_.set_base(before == recipe_rate_ ? base : base * (recipe_rate_ / before));
  if (plateau_)
    plateau_->load({.best = number("plateau_best"),
                    .has_best = number("plateau_has_best") != 0,
                    .bad_steps = static_cast<int>(number("plateau_bad_steps")),
                    .cooling = static_cast<int>(number("plateau_cooling"))});
}

}  // namespace trestle::train
