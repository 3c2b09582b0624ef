#include "trestle/optim/rates/rates.h"

namespace trestle::optim::rates {

namespace {

double step_rate(const LearningRateOptions& options, const Position& position) {
  const bool decays = position.step > 0 && position.step % options.every == 0;
  return decays ? position.before * options.factor : position.before;
}

}  // namespace

RateSchedule step_schedule() { return {.name = "step", .rate = step_rate}; }

}  // namespace trestle::optim::rates
