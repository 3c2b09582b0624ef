#include "trestle/deepspeed/config/rate.h"

#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/deepspeed/config/rates/rates.h"

namespace trestle::optim {

namespace {

using Check = rates::DeepspeedCheck;

struct DeepspeedSchedule {
  std::string_view name;
  double (*rate)(const DeepspeedRateOptions&, double base, std::int64_t step);
  void (*check)(const DeepspeedRateOptions&, const Check&);
  double (*momentum)(const DeepspeedRateOptions&, std::int64_t step) = nullptr;
};
constexpr std::array known_deepspeed_schedules = {
    DeepspeedSchedule{"WarmupLR", rates::deepspeed_warm_up, rates::check_deepspeed_warm_up},
    DeepspeedSchedule{"WarmupDecayLR", rates::deepspeed_warm_up_decay,
                      rates::check_deepspeed_warm_up_decay},
    DeepspeedSchedule{"WarmupCosineLR", rates::deepspeed_warm_up_cosine,
                      rates::check_deepspeed_warm_up_cosine},
    DeepspeedSchedule{"OneCycle", rates::deepspeed_one_cycle, rates::check_deepspeed_one_cycle,
                      rates::deepspeed_one_cycle_momentum},
    DeepspeedSchedule{"LRRangeTest", rates::deepspeed_range_test,
                      rates::check_deepspeed_range_test}};

void check_step(std::int64_t step) {
  if (step < 0) throw UsageError(text("step ", step, " is negative: steps are counted from 0"));
}

}  // namespace

DeepspeedRate::DeepspeedRate(double base, DeepspeedRateOptions options)
    : base_(base), options_(std::move(options)) {
  const DeepspeedSchedule& schedule =
      choose("DeepSpeed schedule", options_.type, known_deepspeed_schedules);
  const auto check = [&](bool holds, const char* what, double value, const char* range) {
    if (!holds || !std::isfinite(value))
      throw UsageError(text("schedule '", options_.type, "': ", what, " = ", value, " is not ",
                            holds ? "finite" : range));
  };
  check(base >= 0, "the optimizer's rate", base, "at least 0");
  schedule.check(options_, check);
}

double DeepspeedRate::at(std::int64_t step) const {
  check_step(step);
  return choose("DeepSpeed schedule", options_.type, known_deepspeed_schedules)
      .rate(options_, base_, step);
}

std::optional<double> DeepspeedRate::momentum_at(std::int64_t step) const {
  check_step(step);
  const DeepspeedSchedule& schedule =
      choose("DeepSpeed schedule", options_.type, known_deepspeed_schedules);
  if (schedule.momentum == nullptr || !options_.cycle_momentum) return std::nullopt;
  return schedule.momentum(options_, step);
}

std::vector<std::string> deepspeed_schedules() {
  std::vector<std::string> names;
  for (const DeepspeedSchedule& schedule : known_deepspeed_schedules)
    names.emplace_back(schedule.name);
  return names;
}

}  // namespace trestle::optim
