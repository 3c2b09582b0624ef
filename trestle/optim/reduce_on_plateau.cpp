#include "trestle/optim/reduce_on_plateau.h"

#include <algorithm>
#include <cmath>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::optim {

ReduceOnPlateau::ReduceOnPlateau(const PlateauOptions& options) : options_(options) {
  if (!(options.factor > 0 && options.factor < 1)) {
    throw UsageError(text("the learning rate's factor is ", options.factor, ", not in (0, 1)"));
  }
  if (options.patience < 0 || options.cooldown < 0) {
    throw UsageError(text("patience = ", options.patience, " and cooldown = ", options.cooldown,
                          " must not be negative"));
  }
  if (!(options.threshold >= 0 && options.lowest >= 0)) {
    throw UsageError(text("threshold = ", options.threshold, " and lowest = ", options.lowest,
                          " must not be negative"));
  }
}

bool ReduceOnPlateau::is_better(double metric) const {
  const double threshold = options_.threshold;
  const bool higher = options_.mode == PlateauOptions::Mode::Max;
  // As in Python, which begins with the worst possible value: an infinite loss is no improvement.
  const double worst = higher ? -HUGE_VAL : HUGE_VAL;
  const double best = state_.has_best ? state_.best : worst;
  if (options_.threshold_mode == PlateauOptions::Threshold::Absolute)
    return higher ? metric > best + threshold : metric < best - threshold;
  return higher ? metric > best * (threshold + 1) : metric < best * (1 - threshold);
}

double ReduceOnPlateau::reduced(double rate) const {
  const double lower = std::max(rate * options_.factor, options_.lowest);
  return rate - lower > options_.smallest_change ? lower : rate;
}

bool ReduceOnPlateau::step(double metric) {
  if (is_better(metric)) {
    state_.best = metric;
    state_.has_best = true;
    state_.bad_steps = 0;
  } else {
    ++state_.bad_steps;
  }
  if (state_.cooling > 0) {
    --state_.cooling;
    state_.bad_steps = 0;
  }
  if (state_.bad_steps <= options_.patience) return false;
  state_.cooling = options_.cooldown;
  state_.bad_steps = 0;
  return true;
}

}  // namespace trestle::optim
