#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

// Gradient clipping by the norm of all gradients together (Pascanu, Mikolov, Bengio 2013), over
// parameters on any devices. torch::nn::utils::clip_grad_norm_ takes one device only; on one device
// the two give the same numbers.
//
//   double norm = trestle::optim::clip_grad_norm(net.parameters(), 1.0);  // before step()
//
// The parameters of a pipeline: Pipeline::clip_grad_norm().
namespace trestle::optim {

struct ClipGradNormOptions {
  double p = 2;  // of the p-norm: any number above 0, also infinity (the largest element)
  // Throw StateError where the norm is infinite or not a number, and leave the gradients as they
  // are; otherwise they are scaled with it, and are zero or not a number then.
  bool error_if_nonfinite = false;
};

// Scales all gradients in place by min(1, max_norm / (norm + 1e-6)), and returns the norm from
// before: the p-norm of the vector of all gradients' elements; 0 where there are none. Parameters
// without a gradient are passed over. One number a parameter crosses to the CPU. Throws UsageError
// for a negative max_norm, a p that is not above 0, and sparse gradients.
double clip_grad_norm(const std::vector<at::Tensor>& parameters, double max_norm,
                      const ClipGradNormOptions& options = {});

// The norm alone; the gradients stay as they are.
double grad_norm(const std::vector<at::Tensor>& parameters, double p = 2);

}  // namespace trestle::optim
