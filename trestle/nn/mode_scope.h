#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "trestle/nn/graph.h"

namespace trestle::nn {

// All modules of some layers in training or evaluation mode while it lives, and afterwards each as it
// was. Makes modules that are not made yet.
class ModeScope {
 public:
  enum class Mode { Train, Evaluate };
  ModeScope(const std::vector<Layer>& layers, Mode mode);
  ~ModeScope();
  ModeScope(const ModeScope&) = delete;
  ModeScope& operator=(const ModeScope&) = delete;

 private:
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> was_training_;
};

}  // namespace trestle::nn
