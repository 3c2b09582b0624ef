#pragma once

#include "trestle/optim/learning_rate.h"

// The schedules of learning_rate.h, one file each. Inside of optim.
namespace trestle::optim::rates {

struct Position {
  std::int64_t step;  // of the schedule's own, from 0
  double before;      // the rate of the step before; the base at step 0
  double base;
};

// Each gives the rate of the step.
double constant(const LearningRateOptions& options, const Position& position);
double step(const LearningRateOptions& options, const Position& position);
double multi_step(const LearningRateOptions& options, const Position& position);
double cosine(const LearningRateOptions& options, const Position& position);
double one_cycle(const LearningRateOptions& options, const Position& position);
double one_cycle_momentum(const LearningRateOptions& options, std::int64_t step);
double warm_up(const LearningRateOptions& options, const Position& position);

}  // namespace trestle::optim::rates
