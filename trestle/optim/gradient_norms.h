#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trestle/optim/clip_grad_norm.h"

// Gradient clipping in steps, for gradients that are not all in one place.
namespace trestle::optim {

// The norm of one gradient, as its own type holds it.
struct GradientNorm {
  double value = 0;
  at::ScalarType dtype = at::kFloat;
};

// Throws UsageError for what clip_grad_norm() refuses.
void check_clipping(double max_norm, const ClipGradNormOptions& options);

// Of each parameter that has a gradient, in their order. One transfer a device.
std::vector<GradientNorm> gradient_norms(const std::vector<at::Tensor>& parameters, double p);

// The norm of all of them together; 0 where there are none.
double total_norm(const std::vector<GradientNorm>& norms, double p);

// Scales the gradients of `parameters` by the norm of all of `norms`, which may be of more gradients than are
// here: the rest of clip_grad_norm(). Returns that norm.
double clip_by(const std::vector<at::Tensor>& parameters, const std::vector<GradientNorm>& norms,
               double max_norm, const ClipGradNormOptions& options);

}  // namespace trestle::optim
