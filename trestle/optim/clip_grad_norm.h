#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

// Gradient clipping by the norm of all gradients together (Pascanu, Mikolov, Bengio 2013), for
// parameters on any devices. torch::nn::utils::clip_grad_norm_ supports one device only; on one
// device both give the same numbers.
//
//   double norm = trestle::optim::clip_grad_norm(net.parameters(), 1.0);  // before step()
//
// For a pipeline's parameters use Pipeline::clip_grad_norm().
namespace trestle::optim {

struct ClipGradNormOptions {
  double p = 2;  // the p of the norm: above 0, or infinity for the largest element
  // True: throw StateError for an infinite or NaN norm, and leave the gradients unchanged. False:
  // scale them by it, which makes them zero or NaN.
  bool error_if_nonfinite = false;
};

// Scales all gradients in place by min(1, max_norm / (norm + 1e-6)). Returns the norm before
// scaling: the p-norm of the vector of all elements of all gradients, or 0 without gradients.
// Parameters without a gradient are skipped. One number for each parameter is copied to the CPU.
// Throws UsageError for a negative max_norm, a p that is not above 0, and sparse gradients.
double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                      const ClipGradNormOptions& options = {});

// Returns the norm and leaves the gradients unchanged.
double grad_norm(const std::vector<at::Tensor>& parameters, double p = 2);

}  // namespace trestle::optim
