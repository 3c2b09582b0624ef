#include "trestle/nn/tanh_gelu.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/gelu_backward.h>
#include <torch/csrc/autograd/custom_function.h>

#include <cstdint>

#include "trestle/device/host_memory.h"
#include "trestle/nn/tanh_gelu_kernel.h"

namespace trestle::nn {

namespace {

constexpr const char* tanh_approximation = "tanh";
constexpr std::int64_t least_numbers = 1 << 14;  // a thread with fewer does not repay its start

bool has_kernel(const at::Tensor& x) {
  return in_host_memory(x) && x.layout() == at::kStrided && x.scalar_type() == at::kFloat &&
         !x._fw_grad(0).defined();
}

at::Tensor forward_of(const at::Tensor& given) {
  const at::Tensor x = given.contiguous();
  at::Tensor y = at::empty_like(x);
  const at::Tensor from = host_view(x), into = host_view(y);
  const auto* const numbers = from.const_data_ptr<float>();
  auto* const results = into.mutable_data_ptr<float>();
  at::parallel_for(0, x.numel(), least_numbers, [&](std::int64_t begin, std::int64_t end) {
    tanh_gelu(numbers + begin, results + begin, end - begin);
  });
  return y;
}

at::Tensor backward_of(const at::Tensor& given, const at::Tensor& gradient) {
  const at::Tensor x = given.contiguous(), dy = gradient.contiguous();
  at::Tensor dx = at::empty_like(x);
  const at::Tensor from = host_view(x), above = host_view(dy), into = host_view(dx);
  const auto* const numbers = from.const_data_ptr<float>();
  const auto* const gradients = above.const_data_ptr<float>();
  auto* const results = into.mutable_data_ptr<float>();
  at::parallel_for(0, x.numel(), least_numbers, [&](std::int64_t begin, std::int64_t end) {
    tanh_gelu_backward(numbers + begin, gradients + begin, results + begin, end - begin);
  });
  return dx;
}

struct TanhGelu : torch::autograd::Function<TanhGelu> {
  using Context = torch::autograd::AutogradContext;

  static at::Tensor forward(Context* context, const at::Tensor& x) {
    context->save_for_backward({x});
    return forward_of(x);
  }

  static torch::autograd::variable_list backward(Context* context,
                                                 torch::autograd::variable_list gradients) {
    const at::Tensor x = context->get_saved_variables()[0];
    // libtorch's operator has a derivative itself.
    if (at::GradMode::is_enabled() || !has_kernel(gradients[0]))
      return {at::gelu_backward(gradients[0], x, tanh_approximation)};
    return {backward_of(x, gradients[0])};
  }
};

}  // namespace

at::Tensor tanh_gelu(const at::Tensor& x) {
  if (!has_kernel(x)) return at::gelu(x, tanh_approximation);
  if (at::GradMode::is_enabled() && x.requires_grad()) return TanhGelu::apply(x);
  return forward_of(x);
}

}  // namespace trestle::nn
