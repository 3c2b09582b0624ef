#include <cmath>

#include "trestle/deepspeed/config/rates/rates.h"

namespace trestle::deepspeed::rates {

namespace {

std::int64_t cycle_steps(const DeepspeedSchedule& options) {
  return options.cycle_first_step_size + options.cycle_second_step_size;
}

// The height of the cycle at a step, from 0 to 1.
double height(const DeepspeedSchedule& options, std::int64_t step) {
  const std::int64_t all = cycle_steps(options), at = step % all;
  const bool rises = at <= options.cycle_first_step_size;
  const auto size =
      static_cast<double>(rises ? options.cycle_first_step_size : options.cycle_second_step_size);
  const auto way = static_cast<double>(rises ? at : all - at);
  const std::int64_t stairs =
      rises ? options.cycle_first_stair_count : options.cycle_second_stair_count;
  if (stairs == 0) return way / size;
  return std::floor(way * static_cast<double>(stairs) / size) / static_cast<double>(stairs);
}

// The number of decay intervals since the end of the cycle; 0 without decay.
double decayed(const DeepspeedSchedule& options, std::int64_t step) {
  if (options.decay_step_size == 0) return 0;
  return static_cast<double>(step - cycle_steps(options)) /
         static_cast<double>(options.decay_step_size);
}

}  // namespace

double deepspeed_one_cycle(const DeepspeedSchedule& options, double, std::int64_t step) {
  const double low = options.cycle_min_lr, high = options.cycle_max_lr;
  if (step <= cycle_steps(options)) return low + (high - low) * height(options, step);
  return low / (1 + options.decay_lr_rate * decayed(options, step));
}

double deepspeed_one_cycle_momentum(const DeepspeedSchedule& options, std::int64_t step) {
  const double low = options.cycle_min_mom, high = options.cycle_max_mom;
  if (step == 0) return low;
  if (step <= cycle_steps(options)) return high - (high - low) * height(options, step);
  return high * (1 + options.decay_mom_rate * decayed(options, step));
}

void check_deepspeed_one_cycle(const DeepspeedSchedule& options, const DeepspeedCheck& check) {
  const auto at_least = [&](std::int64_t least, const char* what, std::int64_t value) {
    check(value >= least, what, static_cast<double>(value),
          least == 1 ? "at least 1" : "at least 0");
  };
  at_least(1, "cycle_first_step_size", options.cycle_first_step_size);
  at_least(1, "cycle_second_step_size", options.cycle_second_step_size);
  at_least(0, "cycle_first_stair_count", options.cycle_first_stair_count);
  at_least(0, "cycle_second_stair_count", options.cycle_second_stair_count);
  at_least(0, "decay_step_size", options.decay_step_size);
  check(options.cycle_min_lr >= 0, "cycle_min_lr", options.cycle_min_lr, "at least 0");
  check(options.cycle_max_lr >= 0, "cycle_max_lr", options.cycle_max_lr, "at least 0");
  check(options.decay_lr_rate >= 0, "decay_lr_rate", options.decay_lr_rate, "at least 0");
  check(options.decay_mom_rate >= 0, "decay_mom_rate", options.decay_mom_rate, "at least 0");
  const auto share = [](double momentum) { return momentum >= 0 && momentum < 1; };
  check(share(options.cycle_min_mom), "cycle_min_mom", options.cycle_min_mom, "in [0, 1)");
  check(share(options.cycle_max_mom), "cycle_max_mom", options.cycle_max_mom, "in [0, 1)");
}

}  // namespace trestle::deepspeed::rates
