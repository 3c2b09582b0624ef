#pragma once

#include <c10/core/InferenceMode.h>
#include <torch/csrc/autograd/grad_mode.h>

#include <optional>

namespace trestle::pipeline {

// Leaves inference mode while it lives; gradients stay off. Tensors made in inference mode have no
// version counter, and a pipeline needs it to detect writes.
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
