#pragma once

#include <ATen/core/Tensor.h>

namespace trestle::models {

// x times the transposed weight, plus a bias where there is one, in x's dtype. With a weight of
// another dtype the product is computed in that one. Autocast chooses the dtypes itself.
at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

}  // namespace trestle::models
