#pragma once

#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <optional>

namespace trestle::pipeline {

// Inference mode stops at the pipeline: tensors made in it have no versions, by which the pipeline
// tells who wrote to what. Gradients stay off.
class NormalModeGuard {
 public:
  NormalModeGuard() {
    if (!c10::InferenceMode::is_enabled()) return;
    normal_.emplace(false);
    no_grad_.emplace();
  }

 private:
  std::optional<c10::InferenceMode> normal_;
  std::optional<at::NoGradGuard> no_grad_;
};

}  // namespace trestle::pipeline
