#pragma once

#include <cmath>

// Inside of the trainer. Not installed.
namespace trestle::train {

// Whether `metric` exceeds `best` by more than `by`. Every comparison of metrics uses this
// function. Any number is better than NaN, and NaN is never better: a user's metric may be NaN for
// an epoch, such as a correlation of equal predictions.
inline bool is_better(double metric, double best, double by = 0) {
  if (std::isnan(metric) || std::isnan(best)) return std::isnan(best) && !std::isnan(metric);
  return metric > best + by;
}

}  // namespace trestle::train
