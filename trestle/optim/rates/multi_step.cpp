#include <algorithm>
#include <cmath>

#include "trestle/optim/rates/rates.h"

namespace trestle::optim::rates {

namespace {

double multi_step_rate(const LearningRateOptions& options, const Position& position) {
  const auto times = std::count(options.milestones.begin(), options.milestones.end(),
                                position.step);  // a milestone may occur twice
  if (times == 0) return position.before;
  return position.before * std::pow(options.factor, static_cast<double>(times));
}

}  // namespace

RateSchedule multi_step_schedule() { return {.name = "multi_step", .rate = multi_step_rate}; }

}  // namespace trestle::optim::rates
