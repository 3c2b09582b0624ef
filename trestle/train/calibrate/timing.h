#pragma once

#include <c10/core/Device.h>

#include <functional>
#include <vector>

#include "trestle/plan/machine/figure.h"

// Repeated measurements. Inside of the trainer. Not installed.
namespace trestle::train {

struct Timed {
  double seconds = 0;  // the median
  double spread = 0;   // the middle half of the runs lies within this share of it
};

Timed median_of(std::vector<double> samples);

// How long one measurement may take.
struct TimingBudget {
  int least = 5;          // samples
  double seconds = 0.25;  // of all samples after the least
  double sample = 1e-3;   // the least seconds of a sample: short work is repeated within one
};

// Runs `run` twice to warm up, and then measures it. It waits for a device that is asynchronous at
// the end of each sample.
Timed time_runs(const std::function<void()>& run, at::Device device, const TimingBudget& budget);

// A measured figure of the value that `timed` gives, for example bytes over its seconds.
plan::Figure measured(double value, const Timed& timed, const std::string& from);

}  // namespace trestle::train
