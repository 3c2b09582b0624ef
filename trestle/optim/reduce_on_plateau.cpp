#include "trestle/optim/reduce_on_plateau.h"

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
}

bool ReduceOnPlateau::is_better(double metric) const {
  if (std::isnan(metric)) return false;
  if (!state_.has_best) return true;
  return options_.mode == PlateauOptions::Mode::Max
             ? metric > state_.best * (1 + options_.threshold)
             : metric < state_.best * (1 - options_.threshold);
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
