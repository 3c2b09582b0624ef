#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

// Replaces torch's batch norm for chosen modules, whatever their type. A module's call of its
// BatchNorm2d is bound at compile time, but every BatchNorm calls torch::batch_norm().
namespace trestle::device {

// The arguments of a torch::batch_norm() call. A tensor that was not given is undefined.
struct BatchNormCall {
  at::Tensor input, weight, bias, running_mean, running_var;
  bool training = false;
  double momentum = 0, eps = 0;
  bool cudnn_enabled = true;
};

// Torch's own batch norm.
at::Tensor plain_batch_norm(const BatchNormCall& call);

class BatchNormKernel {
 public:
  virtual ~BatchNormKernel() = default;
  virtual at::Tensor run(const BatchNormCall& call) = 0;
};

// After this call, torch::batch_norm() with this tensor as running mean or variance runs
// kernel->run() in every thread, including recomputation inside a backward. The kernel belongs to
// the tensor object: to() and set_data() keep it, a copy of the tensor does not have it. A second
// call replaces the kernel.
//
// The first call registers a replacement for torch::batch_norm() with torch's dispatcher, for the
// rest of the process. Batch norms without a kernel compute the same as before.
void set_batch_norm_kernel(const at::Tensor& running_statistic,
                           std::shared_ptr<BatchNormKernel> kernel);
// Whether `tensor` has a kernel.
bool has_batch_norm_kernel(const at::Tensor& tensor);

}  // namespace trestle::device
