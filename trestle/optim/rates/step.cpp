#include "trestle/optim/rates/rates.h"

namespace trestle::optim::rates {

double step(const LearningRateOptions& options, const Position& position) {
  const bool decays = position.step > 0 && position.step % options.every == 0;
  return decays ? position.before * options.factor : position.before;
}

}  // namespace trestle::optim::rates
