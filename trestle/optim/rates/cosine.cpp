#include <cmath>
#include <numbers>

#include "trestle/optim/rates/rates.h"

namespace trestle::optim::rates {

namespace {

double cosine_rate(const LearningRateOptions& options, const Position& position) {
  const auto [step, before, base] = position;
  if (step == 0) return base;
  const auto length = static_cast<double>(options.length);
  const auto height = [&](std::int64_t at) {
    return 1 + std::cos(std::numbers::pi * static_cast<double>(at) / length);
  };
  // After the lowest point, where the ratio below would be x / 0.
  if ((step - 1 - options.length) % (2 * options.length) == 0)
    return before + (base - options.lowest) * (1 - std::cos(std::numbers::pi / length)) / 2;
  return height(step) / height(step - 1) * (before - options.lowest) + options.lowest;
}

}  // namespace

RateSchedule cosine_schedule() {
  return {.name = "cosine", .rate = cosine_rate, .has_length = true};
}

}  // namespace trestle::optim::rates
