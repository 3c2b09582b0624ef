#pragma once

#include <ATen/core/Tensor.h>

namespace trestle::models {

// x times the transposed weight, plus a bias where there is one, in x's dtype. With a weight of
// another dtype the product is computed in that one. Autocast chooses the dtypes itself.
//
// In inference mode, on a processor without bf16 instructions, more than 16 vectors x times a bf16
// weight are computed in fp32 and rounded to bf16: that is four times as fast.
at::Tensor product(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias = {});

// Whether product() computes in another dtype than x's, which at::linear() refuses.
bool casts(const at::Tensor& x, const at::Tensor& weight);

}  // namespace trestle::models
