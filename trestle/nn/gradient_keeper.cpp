#include "trestle/nn/gradient_keeper.h"

#include <utility>

namespace trestle::nn {

GradientKeeper::GradientKeeper(std::vector<at::Tensor> parameters)
    : parameters_(std::move(parameters)) {
  for (auto& parameter : parameters_) {
    kept_.push_back(parameter.grad());
    parameter.mutable_grad() = at::Tensor();
  }
}

GradientKeeper::~GradientKeeper() {
  // In reverse: for a parameter that is listed twice, the first entry has its gradient.
  for (std::size_t i = parameters_.size(); i-- > 0;) parameters_[i].mutable_grad() = kept_[i];
}

}  // namespace trestle::nn
