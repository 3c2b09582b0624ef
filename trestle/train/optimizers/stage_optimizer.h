#pragma once

#include <torch/optim/optimizer.h>

#include <string>
#include <vector>

// Inside of the trainer. Not installed.
namespace trestle::train {

// The optimizer of one stage, which the pipeline owns, the unsplit names of its parameters in its
// order, and the factor of the learning rate of each of its groups. A stage that is frozen as a
// whole has none.
struct StageOptimizer {
  int stage = 0;
  std::vector<std::string> names;
  torch::optim::Optimizer* optimizer = nullptr;
  std::vector<double> rate_factors = {};
};

}  // namespace trestle::train
