#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "trestle/nn/graph.h"

namespace trestle::nn {

// Sets all modules of some layers to training or evaluation mode while it lives, then restores each
// module's mode. Creates modules that do not exist yet.
class TrainingModeScope {
 public:
  enum class Mode { Train, Evaluate };
  TrainingModeScope(const std::vector<Layer>& layers, Mode mode);
  ~TrainingModeScope();
  TrainingModeScope(const TrainingModeScope&) = delete;
  TrainingModeScope& operator=(const TrainingModeScope&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> was_training_;
};

}  // namespace trestle::nn
