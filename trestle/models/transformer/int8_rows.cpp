#include "trestle/models/transformer/int8_rows.h"

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/where.h>
#include <torch/csrc/autograd/custom_function.h>

#include "trestle/models/transformer/int8_few_rows.h"

namespace trestle::models {

namespace {

constexpr double largest_int8 = 127;

struct Int8Product : torch::autograd::Function<Int8Product> {
  using Context = torch::autograd::AutogradContext;

  static at::Tensor forward(Context* context, const at::Tensor& x, const at::Tensor& rows,
                            const at::Tensor& scales) {
    context->save_for_backward({rows, scales});
    return at::linear(x, from_int8_rows({rows, scales}, x.scalar_type()));
  }

  // Made of operators of autograd, so it can be differentiated again.
  static torch::autograd::variable_list backward(Context* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    const at::Tensor& gradient = gradients[0];
    return {at::matmul(gradient, from_int8_rows({saved[0], saved[1]}, gradient.scalar_type())),
            at::Tensor(), at::Tensor()};
  }
};

}  // namespace

Int8Rows to_int8_rows(const at::Tensor& matrix) {
  const at::NoGradGuard no_grad;
  const at::Tensor exact = matrix.to(at::kFloat);
  const at::Tensor scales = exact.abs().amax(1).div_(largest_int8);
  const at::Tensor divisors = at::where(scales == 0, 1.0, scales).unsqueeze(1);
  return {exact.div(divisors).round_().clamp_(-largest_int8, largest_int8).to(at::kChar), scales};
}

at::Tensor from_int8_rows(const Int8Rows& weight, at::ScalarType type) {
  // Most scales are below the smallest normal number of fp16.
  const at::ScalarType exact = type == at::kHalf ? at::kFloat : type;
  return weight.rows.to(exact).mul_(weight.scales.to(exact).unsqueeze(1)).to(type);
}

at::Tensor product(const at::Tensor& x, const Int8Rows& weight, const at::Tensor& bias) {
  const at::DeviceType device = x.device().type();
  const at::ScalarType type = at::autocast::is_autocast_enabled(device)
                                  ? at::autocast::get_autocast_dtype(device)
                                  : x.scalar_type();
  const at::Tensor typed = x.to(type);
  // Training keeps one way of rounding, whatever the number of vectors.
  const at::Tensor y = !at::GradMode::is_enabled() && has_few_rows(typed, weight)
                           ? few_rows_product(typed, weight)
                           : Int8Product::apply(typed, weight.rows, weight.scales);
  return bias.defined() ? y + bias.to(type) : y;
}

}  // namespace trestle::models
