#include "trestle/sharding/reduce/set_aside_gradients.h"

#include <ATen/core/grad_mode.h>

namespace trestle::sharding {

void SetAsideGradients::take(const FlatParameterGroups& groups) {
  if (std::exchange(holds_, true)) return;
  for (const auto& group : groups) {
    if (!group->trained()) continue;
    for (const auto& [name, parameter] : group->parameters())
      if (at::Tensor gradient = std::exchange(parameter.mutable_grad(), at::Tensor());
          gradient.defined())
        gradients_.emplace_back(parameter, std::move(gradient));
  }
}

void SetAsideGradients::add_back() {
  const at::NoGradGuard no_grad;
  for (const auto& [parameter, before] : gradients_) {
    at::Tensor& gradient = parameter.mutable_grad();
    gradient = gradient.defined() ? gradient.add_(before) : before;
  }
  clear();
}

void SetAsideGradients::clear() {
  holds_ = false;
  gradients_.clear();
}

}  // namespace trestle::sharding
