#include <algorithm>
#include <cmath>
#include <numbers>

#include "trestle/optim/rates/rates.h"

namespace trestle::optim::rates {

namespace {

// From `first` to `last` along half a cosine, at `share` of the way.
double along_cosine(double first, double last, double share) {
  return last + (first - last) / 2.0 * (std::cos(std::numbers::pi * share) + 1);
}

double share_of(double begin, double end, double at) {
  return end > begin ? (at - begin) / (end - begin) : 1;
}

// From `first` to `top` while the rate rises, then to `last`.
double along_cycle(const LearningRateOptions& options, std::int64_t step, double first, double top,
                   double last) {
  const auto length = static_cast<double>(options.length);
  const double turn = options.rise * length - 1;
  const double at = static_cast<double>(std::min(step, options.length - 1));
  if (at <= turn) return along_cosine(first, top, share_of(0, turn, at));
  return along_cosine(top, last, share_of(turn, length - 1, at));
}

double one_cycle_rate(const LearningRateOptions& options, const Position& position) {
  const double first = position.base / options.first_divisor;
  return along_cycle(options, position.step, first, position.base, first / options.last_divisor);
}

double one_cycle_momentum(const LearningRateOptions& options, std::int64_t step) {
  return along_cycle(options, step, options.highest_momentum, options.lowest_momentum,
                     options.highest_momentum);
}

}  // namespace

RateSchedule one_cycle_schedule() {
  return {.name = "one_cycle",
          .rate = one_cycle_rate,
          .has_length = true,
          .momentum = one_cycle_momentum};
}

}  // namespace trestle::optim::rates
