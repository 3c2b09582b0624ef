#pragma once

#include <cstdint>
#include <vector>

#include "trestle/plan/gpt/gpt_model.h"
#include "trestle/plan/machine/machine.h"
#include "trestle/plan/search/strategy.h"

// Fits the constants of TransformerTimes to known steps.
namespace trestle::plan {

struct KnownStep {
  GptModel model;
  Strategy strategy;
  std::int64_t batch = 1;  // examples of all replicas
  double seconds = 0;
};

// The seven constants from matrix_efficiency to step_seconds with the least sum of squares of
// log(predicted / known) over the steps, by Levenberg and Marquardt's method from the machine's own
// constants. Deterministic. The step's time is pipeline_seconds(). The other figures stay. Throws
// UsageError for fewer than seven steps, and for a time that is not above 0.
Machine fit_times(Machine machine, const std::vector<KnownStep>& steps);

// The time of a step in closed form: every stage once, the slowest stage for each further
// micro-batch, each message between stages once in each direction, the reduction over data ranks,
// the update. Without messages it is the simulator's time of stages with equal numbers of
// layers, and above it by a few percent for others.
double pipeline_seconds(const Machine& machine, const KnownStep& step);

// The machine with a KnownBlock for each shape of the steps' blocks: the time with which the sum of
// log(predicted / known) over the shape's steps is 0.
Machine profile_blocks(Machine machine, const std::vector<KnownStep>& steps);

}  // namespace trestle::plan
