#include "trestle/nn/training_mode_scope.h"

#include <torch/nn/module.h>

namespace trestle::nn {

TrainingModeScope::TrainingModeScope(const std::vector<Layer>& layers, Mode mode) {
  for (const auto& layer : layers) {
    if (!layer.module) continue;
    for (const auto& module : layer.module->modules()) {
      was_training_.emplace_back(module, module->is_training());
    }
  }
  for (auto& [module, was] : was_training_) module->train(mode == Mode::Train);
}

TrainingModeScope::~TrainingModeScope() {
  // train() also sets the children; they come later in the list, so their own value wins.
  for (auto& [module, was] : was_training_) module->train(was);
}

}  // namespace trestle::nn
