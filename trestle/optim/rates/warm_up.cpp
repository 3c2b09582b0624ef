#include "trestle/optim/rates/rates.h"

namespace trestle::optim::rates {

// Linear, written as the factor from one step to the next.
double warm_up(const LearningRateOptions& options, const Position& position) {
  const double from = options.warm_up_from;
  if (position.step == 0) return position.base * from;
  const double rise = 1.0 - from;
  return position.before * (1.0 + rise / (static_cast<double>(options.warm_up) * from +
                                          static_cast<double>(position.step - 1) * rise));
}

}  // namespace trestle::optim::rates
