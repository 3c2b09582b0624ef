#include "trestle/nn/mode_scope.h"

#include <torch/nn/module.h>

namespace trestle::nn {

ModeScope::ModeScope(const std::vector<Layer>& layers, Mode mode) {
  for (const auto& layer : layers) {
    if (!layer.module) continue;
    for (const auto& module : layer.module->modules()) {
      was_training_.emplace_back(module, module->is_training());
    }
  }
  for (auto& [module, was] : was_training_) module->train(mode == Mode::Train);
}

ModeScope::~ModeScope() {
  // train() reaches the children too; they come later in the list and have the last word.
  for (auto& [module, was] : was_training_) module->train(was);
}

}  // namespace trestle::nn
