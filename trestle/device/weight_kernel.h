#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

// Replaces the operator of chosen layers, whatever their type. A module's call of its Linear is
// bound at compile time, but every Linear gives its weight to torch's operators.
namespace trestle::device {

enum class WeightOperator : std::uint8_t {
  Product,      // torch::nn::Linear, at::linear()
  Convolution,  // Conv1d to Conv3d, ConvTranspose1d to ConvTranspose3d
  Lookup,       // torch::nn::Embedding
};

// A layer's call. `bias` is undefined where none was given. For a Lookup `input` has the row
// numbers.
struct WeightCall {
  at::Tensor input, weight, bias;
  // Torch's own operator with the call's other arguments, such as a stride.
  std::function<at::Tensor(const at::Tensor& input, const at::Tensor& weight,
                           const at::Tensor& bias)>
      plain;
};

class WeightKernel {
 public:
  virtual ~WeightKernel() = default;
  // No operator runs a kernel inside of this call, also if its weight has one.
  virtual at::Tensor run(const WeightCall& call) = 0;
};

// After this call, the operator with this tensor as weight runs kernel->run() in every thread, with
// autocast, without gradients, in inference mode and in the recomputation of a backward. A layer's
// product is at::linear(), or addmm() or matmul() with weight.t(), as torch::nn::Linear calls them.
//
// The kernel belongs to the tensor object: to() and set_data() keep it, a copy of the tensor does
// not have it. A second call replaces the kernel of the same operator.
//
// The first call registers replacements with torch's dispatcher for the rest of the process. Make
// it before other threads run layers. Operators with other weights compute the same as before.
void set_weight_kernel(const at::Tensor& weight, WeightOperator of,
                       std::shared_ptr<WeightKernel> kernel);
std::shared_ptr<WeightKernel> weight_kernel(const at::Tensor& weight, WeightOperator of);
// Gives `to` the kernels of `from` for operators for which it has none.
void copy_weight_kernels(const at::Tensor& from, const at::Tensor& to);

// Marks a tensor as a slice of a parameter, or as a whole one, under the same rules.
void mark_as_slice(const at::Tensor& tensor);
void mark_as_whole(const at::Tensor& tensor, std::string name);
bool is_slice(const at::Tensor& tensor);
// "" for a tensor that was not marked as whole.
std::string name_of_whole(const at::Tensor& tensor);

}  // namespace trestle::device
