#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trestle/optim/clip_grad_norm.h"

// The steps of gradient clipping, for gradients that are spread over several places.
namespace trestle::optim {

// The norm of one gradient, computed in the gradient's type.
struct GradientNorm {
  double value = 0;
  at::ScalarType dtype = at::kFloat;
};

// Throws UsageError for arguments that clip_grad_norm() rejects.
void check_clipping(double max_norm, const ClipGradNormOptions& options);

// The norm of each parameter's gradient, in the order of the parameters that have one. One transfer
// for each device.
std::vector<GradientNorm> gradient_norms(const std::vector<at::Tensor>& parameters, double p);

// The norm of all of them together; 0 for none.
double total_norm(const std::vector<GradientNorm>& norms, double p);

// Scales the gradients of `parameters` by the norm of all of `norms`, which may include gradients
// elsewhere. This is the second half of clip_grad_norm(). Returns that norm.
double clip_by(const std::vector<at::Tensor>& parameters, const std::vector<GradientNorm>& norms,
               double max_norm, const ClipGradNormOptions& options);

}  // namespace trestle::optim
