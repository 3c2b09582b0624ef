#include "trestle/deepspeed/config/rate.h"

#include <array>
#include <cmath>
#include <string_view>
#include <utility>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/deepspeed/config/rates/rates.h"

namespace trestle::deepspeed {

namespace {

using Check = rates::DeepspeedCheck;

struct RateFunctions {
  std::string_view name;
  double (*rate)(const DeepspeedSchedule&, double base, std::int64_t step);
  void (*check)(const DeepspeedSchedule&, const Check&);
  double (*momentum)(const DeepspeedSchedule&, std::int64_t step) = nullptr;
};
constexpr std::array rate_functions = {
    RateFunctions{"WarmupLR", rates::deepspeed_warm_up, rates::check_deepspeed_warm_up},
    RateFunctions{"WarmupDecayLR", rates::deepspeed_warm_up_decay,
                  rates::check_deepspeed_warm_up_decay},
    RateFunctions{"WarmupCosineLR", rates::deepspeed_warm_up_cosine,
                  rates::check_deepspeed_warm_up_cosine},
    RateFunctions{"OneCycle", rates::deepspeed_one_cycle, rates::check_deepspeed_one_cycle,
                  rates::deepspeed_one_cycle_momentum},
    RateFunctions{"LRRangeTest", rates::deepspeed_range_test, rates::check_deepspeed_range_test}};

const RateFunctions& functions_of(const DeepspeedSchedule& schedule) {
  return choose("DeepSpeed schedule", schedule.type, rate_functions);
}

void check_step(std::int64_t step) {
  if (step < 0) throw UsageError(text("step ", step, " is negative: steps are counted from 0"));
}

}  // namespace

DeepspeedRate::DeepspeedRate(double base, DeepspeedSchedule schedule)
    : base_(base), schedule_(std::move(schedule)) {
  const RateFunctions& functions = functions_of(schedule_);
  const auto check = [&](bool holds, const char* what, double value, const char* range) {
    if (!holds || !std::isfinite(value))
      throw UsageError(text("schedule '", schedule_.type, "': ", what, " = ", value, " is not ",
                            holds ? "finite" : range));
  };
  check(base >= 0, "the optimizer's rate", base, "at least 0");
  functions.check(schedule_, check);
}

double DeepspeedRate::at(std::int64_t step) const {
  check_step(step);
  return functions_of(schedule_).rate(schedule_, base_, step);
}

std::optional<double> DeepspeedRate::momentum_at(std::int64_t step) const {
  check_step(step);
  const RateFunctions& functions = functions_of(schedule_);
  if (functions.momentum == nullptr || !schedule_.cycle_momentum) return std::nullopt;
  return functions.momentum(schedule_, step);
}

std::vector<std::string> deepspeed_schedules() {
  std::vector<std::string> names;
  for (const RateFunctions& functions : rate_functions) names.emplace_back(functions.name);
  return names;
}

}  // namespace trestle::deepspeed
