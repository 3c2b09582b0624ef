#pragma once

#include <ATen/core/Tensor.h>

namespace trestle::nn {

// GPT-2's activation, as at::gelu(x, "tanh") to rounding, with its gradient:
//
//     0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3)))       Hendrycks and Gimpel, 2016
//
// x has any shape; the result has its shape and dtype. For fp32 on the CPU and on virtual devices
// it is computed with exp(), in a quarter of the time of libtorch's tanh(), to the same bits on
// every processor. Other tensors, and gradients of gradients, are libtorch's. For -infinity the
// result is -infinity, where libtorch's is NaN.
//
//   at::Tensor hidden = trestle::nn::tanh_gelu(torch::randn({8, 3072}));
at::Tensor tanh_gelu(const at::Tensor& x);

}  // namespace trestle::nn
