#pragma once

#include <cmath>

// Inside of the trainer. Not installed.
namespace trestle::train {

// Is a metric above the best so far by more than `by`? Whatever compares metrics asks here: one that
// is not a number is better than none, and any number is better than it. (A metric of one's own may
// be NaN for an epoch, a correlation of equal predictions.)
inline bool is_better(double metric, double best, double by = 0) {
  if (std::isnan(metric) || std::isnan(best)) return std::isnan(best) && !std::isnan(metric);
  return metric > best + by;
}

}  // namespace trestle::train
