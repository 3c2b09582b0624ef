#pragma once

#include <ATen/core/Tensor.h>

#include <memory>

// Batch norms of torch that compute something else, whatever module they are in: a module calls its
// BatchNorm2d by the type that is compiled in, but every BatchNorm calls torch::batch_norm().
namespace trestle::device {

// What torch::batch_norm() was called with; tensors that are not there are undefined.
struct BatchNormCall {
  at::Tensor input, weight, bias, running_mean, running_var;
  bool training = false;
  double momentum = 0, eps = 0;
  bool cudnn_enabled = true;
};

// Torch's own.
at::Tensor plain_batch_norm(const BatchNormCall& call);

class BatchNormKernel {
 public:
  virtual ~BatchNormKernel() = default;
  virtual at::Tensor run(const BatchNormCall& call) = 0;
};

// From here on torch::batch_norm() with this tensor as running mean or variance is kernel->run(), in
// every thread, also where a backward runs it again. It belongs to the tensor object: to() and set_data()
// keep it, a copy does not have it. The last one given counts.
//
// The first call gives torch's dispatcher a function in the place of torch::batch_norm(), for the whole
// process and for good. Other batch norms go on as before.
void set_batch_norm_kernel(const at::Tensor& running_statistic,
                           std::shared_ptr<BatchNormKernel> kernel);
// Whether it has one.
bool has_batch_norm_kernel(const at::Tensor& tensor);

}  // namespace trestle::device
