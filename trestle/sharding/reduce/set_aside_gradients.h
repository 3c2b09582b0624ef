#pragma once

#include <ATen/core/Tensor.h>

#include <utility>
#include <vector>

#include "trestle/sharding/flat/flat_parameter_group.h"

namespace trestle::sharding {

// Gradients that were in grad() before a step of several backward passes. They count once, not once
// for each rank or micro-batch, so they are taken out of grad() before the step and added to its
// result.
class SetAsideGradients {
 public:
  // Takes the gradients of all trained parameters. Does nothing while it holds some.
  void take(const FlatParameterGroups& groups);
  void add_back();
  void clear();

 private:
  bool holds_ = false;
  std::vector<std::pair<at::Tensor, at::Tensor>> gradients_;  // (parameter, its gradient)
};

}  // namespace trestle::sharding
