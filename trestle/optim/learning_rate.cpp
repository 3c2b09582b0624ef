#include "trestle/optim/learning_rate.h"

#include <algorithm>
#include <utility>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/optim/rates/rates.h"

namespace trestle::optim {

namespace {

using rates::RateSchedule;

// The linear warm-up, written as the factor from one step to the next.
double warm_up_rate(const LearningRateOptions& options, const rates::Position& position) {
  const double from = options.warm_up_from;
  if (position.step == 0) return position.base * from;
  const double rise = 1.0 - from;
  return position.before * (1.0 + rise / (static_cast<double>(options.warm_up) * from +
                                          static_cast<double>(position.step - 1) * rise));
}

// Throws UsageError for options out of range. Returns the schedule's index in the table.
std::size_t checked_schedule(const LearningRateOptions& o) {
  const auto& schedules = rates::all_schedules();
  const RateSchedule& schedule = choose("learning-rate schedule", o.schedule, schedules);
  const auto require = [&](bool holds, const char* what, double value, const char* range) {
    if (holds) return;
    throw UsageError(
        text("learning-rate schedule '", o.schedule, "': ", what, " = ", value, " is not ", range));
  };
  require(o.factor > 0, "factor", o.factor, "above 0");
  require(o.every >= 1, "every", static_cast<double>(o.every), "at least 1");
  require(!schedule.has_length || o.length >= 1, "length", static_cast<double>(o.length),
          "at least 1");
  require(o.lowest >= 0, "lowest", o.lowest, "at least 0");
  require(o.rise >= 0 && o.rise <= 1, "rise", o.rise, "in [0, 1]");
  require(o.first_divisor > 0, "first_divisor", o.first_divisor, "above 0");
  require(o.last_divisor > 0, "last_divisor", o.last_divisor, "above 0");
  require(o.lowest_momentum >= 0 && o.lowest_momentum <= o.highest_momentum, "lowest_momentum",
          o.lowest_momentum, "from 0 to highest_momentum");
  require(o.highest_momentum < 1, "highest_momentum", o.highest_momentum, "below 1");
  require(o.warm_up >= 0, "warm_up", static_cast<double>(o.warm_up), "at least 0");
  require(o.warm_up_from > 0 && o.warm_up_from <= 1, "warm_up_from", o.warm_up_from, "in (0, 1]");
  if (!std::is_sorted(o.milestones.begin(), o.milestones.end()))
    throw UsageError(text("learning-rate schedule '", o.schedule, "': the milestones [",
                          join(o.milestones, ", "), "] do not ascend"));
  return static_cast<std::size_t>(&schedule - schedules.data());
}

}  // namespace

LearningRate::LearningRate(double base, LearningRateOptions options)
    : base_(base), options_(std::move(options)), schedule_(checked_schedule(options_)) {}

void LearningRate::set_base(double base) {
  base_ = base;
  step_ = -1;
}

double LearningRate::next(std::int64_t step, double before) const {
  if (step < options_.warm_up) return warm_up_rate(options_, {step, before, base_});
  const std::int64_t own = step - options_.warm_up;
  return rates::all_schedules()[schedule_].rate(options_, {own, own == 0 ? base_ : before, base_});
}

std::optional<double> LearningRate::momentum_at(std::int64_t step) const {
  const RateSchedule& schedule = rates::all_schedules()[schedule_];
  if (schedule.momentum == nullptr || !options_.cycle_momentum) return std::nullopt;
  return schedule.momentum(options_, std::max<std::int64_t>(step - options_.warm_up, 0));
}

double LearningRate::at(std::int64_t step) {
  if (step < 0) throw UsageError(text("step ", step, " is negative: steps are counted from 0"));
  if (step < step_) step_ = -1;
  while (step_ < step) {
    ++step_;
    rate_ = next(step_, rate_);
  }
  return rate_;
}

std::vector<std::string> learning_rate_schedules() {
  std::vector<std::string> names;
  for (const RateSchedule& schedule : rates::all_schedules()) names.emplace_back(schedule.name);
  return names;
}

}  // namespace trestle::optim
