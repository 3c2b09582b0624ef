#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace trestle::nn {

// Sets parameters' gradients aside: while it lives they have none, as before a step's first
// backward, until a backward creates them. The destructor restores the old ones.
class GradientKeeper {
 public:
  explicit GradientKeeper(std::vector<at::Tensor> parameters);
  ~GradientKeeper();
  GradientKeeper(const GradientKeeper&) = delete;
  GradientKeeper& operator=(const GradientKeeper&) = delete;

 private:
  std::vector<at::Tensor> parameters_;
  std::vector<at::Tensor> kept_;
};

}  // namespace trestle::nn
