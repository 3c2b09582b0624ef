#include <cmath>
#include <numbers>

#include "trestle/optim/rates/rates.h"

namespace trestle::optim::rates {

namespace {

double cosine_decay_rate(const LearningRateOptions& options, const Position& position) {
  if (position.step >= options.length) return options.lowest;
  const double share = static_cast<double>(position.step) / static_cast<double>(options.length);
  const double height = (1 + std::cos(std::numbers::pi * share)) / 2;
  return options.lowest + height * (position.base - options.lowest);
}

}  // namespace

// Half a cosine from the base rate to the lowest one, which stays. Megatron-LM's
// --lr-decay-style cosine.
RateSchedule cosine_decay_schedule() {
  return {.name = "cosine_decay", .rate = cosine_decay_rate, .has_length = true};
}

}  // namespace trestle::optim::rates
