#include "trestle/optim/rates/rates.h"

namespace trestle::optim::rates {

namespace {

double linear_decay_rate(const LearningRateOptions& options, const Position& position) {
  if (position.step >= options.length) return options.lowest;
  const double share = static_cast<double>(position.step) / static_cast<double>(options.length);
  return options.lowest + (1 - share) * (position.base - options.lowest);
}

}  // namespace

// A line from the base rate to the lowest one, which stays. Megatron-LM's --lr-decay-style linear.
RateSchedule linear_decay_schedule() {
  return {.name = "linear_decay", .rate = linear_decay_rate, .has_length = true};
}

}  // namespace trestle::optim::rates
