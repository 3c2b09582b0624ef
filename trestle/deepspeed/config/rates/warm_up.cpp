#include <algorithm>
#include <array>
#include <cmath>
#include <numbers>
#include <string_view>

#include "trestle/base/choose.h"
#include "trestle/deepspeed/config/rates/rates.h"

namespace trestle::deepspeed::rates {

namespace {

struct Rise {
  std::string_view name;
  double (*share)(std::int64_t done, std::int64_t steps);
};
constexpr std::array rises = {Rise{"log",
                                   [](std::int64_t done, std::int64_t steps) {
                                     return 1.0 / std::log(static_cast<double>(steps)) *
                                            std::log(static_cast<double>(done + 1));
                                   }},
                              Rise{"linear", [](std::int64_t done, std::int64_t steps) {
                                     return static_cast<double>(done) / static_cast<double>(steps);
                                   }}};

std::int64_t warm_up_steps(const DeepspeedSchedule& options) {
  return std::max<std::int64_t>(2, options.warmup_num_steps);
}

// The share of the rise at a step; nothing after the rise.
std::optional<double> risen(const DeepspeedSchedule& options, std::int64_t step) {
  const std::int64_t steps = warm_up_steps(options), done = std::max<std::int64_t>(step - 1, 0);
  if (done >= steps) return std::nullopt;
  return choose("warmup_type", options.warmup_type, rises).share(done, steps);
}

double between(const DeepspeedSchedule& options, double share) {
  return options.warmup_min_lr + (options.warmup_max_lr - options.warmup_min_lr) * share;
}

// The number of steps from the end of the rise to the end of the schedule.
double falling_steps(const DeepspeedSchedule& options) {
  const std::int64_t steps = options.total_num_steps - warm_up_steps(options);
  return static_cast<double>(std::max<std::int64_t>(1, steps));
}

void check_rise(const DeepspeedSchedule& options, const DeepspeedCheck& check) {
  choose("warmup_type", options.warmup_type, rises);
  check(options.warmup_num_steps >= 1, "warmup_num_steps",
        static_cast<double>(options.warmup_num_steps), "at least 1");
}

void check_total(const DeepspeedSchedule& options, const DeepspeedCheck& check) {
  check(options.total_num_steps >= 1, "total_num_steps",
        static_cast<double>(options.total_num_steps), "at least 1");
}

}  // namespace

double deepspeed_warm_up(const DeepspeedSchedule& options, double, std::int64_t step) {
  return between(options, risen(options, step).value_or(1));
}

double deepspeed_warm_up_decay(const DeepspeedSchedule& options, double, std::int64_t step) {
  if (const auto share = risen(options, step)) return between(options, *share);
  const auto left = static_cast<double>(options.total_num_steps - (step - 1));
  return between(options, std::max(0.0, left / falling_steps(options)));
}

double deepspeed_warm_up_cosine(const DeepspeedSchedule& options, double base, std::int64_t step) {
  if (step == 0) return 0;
  if (const auto share = risen(options, step))
    return base * (options.warmup_min_ratio + *share * (1 - options.warmup_min_ratio));
  const auto done = static_cast<double>(step - warm_up_steps(options));
  const double height =
      (1 + std::cos(std::numbers::pi * std::min(1.0, done / falling_steps(options)))) / 2;
  return base * std::max(0.0, options.cos_min_ratio + (1 - options.cos_min_ratio) * height);
}

void check_deepspeed_warm_up(const DeepspeedSchedule& options, const DeepspeedCheck& check) {
  check_rise(options, check);
  check(options.warmup_min_lr >= 0, "warmup_min_lr", options.warmup_min_lr, "at least 0");
  check(options.warmup_max_lr >= 0, "warmup_max_lr", options.warmup_max_lr, "at least 0");
}

void check_deepspeed_warm_up_decay(const DeepspeedSchedule& options, const DeepspeedCheck& check) {
  check_deepspeed_warm_up(options, check);
  check_total(options, check);
}

void check_deepspeed_warm_up_cosine(const DeepspeedSchedule& options, const DeepspeedCheck& check) {
  check_rise(options, check);
  check_total(options, check);
  check(options.warmup_min_ratio >= 0, "warmup_min_ratio", options.warmup_min_ratio, "at least 0");
  check(options.cos_min_ratio >= 0, "cos_min_ratio", options.cos_min_ratio, "at least 0");
}

}  // namespace trestle::deepspeed::rates
