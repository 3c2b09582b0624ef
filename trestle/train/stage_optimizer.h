#pragma once

#include <torch/optim/optimizer.h>

#include <map>
#include <memory>
#include <string>
#include <vector>

// Inside of the trainer. Not installed.
namespace trestle::train {

// The optimizer of one stage, the unsplit names of its parameters in its order, and the factor of the
// learning rate of each of its groups. A stage that is frozen as a whole has none.
struct StageOptimizer {
  int stage = 0;
  std::vector<std::string> names;
  std::unique_ptr<torch::optim::Optimizer> optimizer;
  std::vector<double> rate_factors = {};
};

}  // namespace trestle::train
