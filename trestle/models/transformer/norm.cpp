#include "trestle/models/transformer/norm.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>
#include <torch/csrc/autograd/custom_function.h>

#include <vector>

#include "trestle/tensor_parallel/operators.h"

namespace trestle::models {

namespace {

// 1 / sqrt(mean(x^2) + epsilon) of each row, in fp32.
at::Tensor scale_of(const at::Tensor& exact, double epsilon) {
  return at::rsqrt(exact.square().mean(-1, /*keepdim=*/true) + epsilon);
}

at::Tensor scaled(const at::Tensor& exact, const at::Tensor& scale, at::ScalarType type) {
  return (exact * scale).to(type);
}

// Autograd's own graph of RMS norm keeps x in fp32 and the rounded quotient. This one keeps x
// itself and a number for each row. Its gradients have the bits of autograd's.
struct RmsNorm : torch::autograd::Function<RmsNorm> {
  using Context = torch::autograd::AutogradContext;

  static at::Tensor forward(Context* context, const at::Tensor& x, const at::Tensor& weight,
                            double epsilon) {
    const at::Tensor exact = x.to(at::kFloat);
    const at::Tensor scale = scale_of(exact, epsilon);
    context->save_for_backward({x, weight, scale});
    context->saved_data["epsilon"] = epsilon;
    return scaled(exact, scale, x.scalar_type()) * weight;
  }

  static torch::autograd::variable_list backward(Context* context,
                                                 const torch::autograd::variable_list& gradients) {
    const torch::autograd::variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &weight = saved[1], &given = gradients[0];
    const at::Tensor exact = x.to(at::kFloat);
    // A gradient of this gradient needs the way from x to the scale.
    const at::Tensor scale = at::GradMode::is_enabled()
                                 ? scale_of(exact, context->saved_data["epsilon"].toDouble())
                                 : saved[2];
    torch::autograd::variable_list result(3);
    if (context->needs_input_grad(1))
      result[1] = (given * scaled(exact, scale, x.scalar_type()))
                      .sum_to_size(weight.sizes())
                      .to(weight.scalar_type());
    if (!context->needs_input_grad(0)) return result;
    const at::Tensor of_scaled = (given * weight).to(x.scalar_type()).to(at::kFloat);
    const at::Tensor of_scale = (of_scaled * exact).sum(-1, /*keepdim=*/true);
    const at::Tensor of_mean = -0.5 * of_scale * scale.pow(3);
    const at::Tensor of_square = of_mean.expand(exact.sizes()) / exact.size(-1);
    result[0] = (of_scaled * scale + of_square * (2 * exact)).to(x.scalar_type());
    return result;
  }
};

at::Tensor rms_norm(const at::Tensor& x, const at::Tensor& weight, double epsilon) {
  const bool keeps = at::GradMode::is_enabled() && (x.requires_grad() || weight.requires_grad());
  const bool forward_mode = x._fw_grad(0).defined() || weight._fw_grad(0).defined();
  if (keeps && !forward_mode) return RmsNorm::apply(x, weight, epsilon);
  const at::Tensor exact = x.to(at::kFloat);
  return scaled(exact, scale_of(exact, epsilon), x.scalar_type()) * weight;
}

}  // namespace

NormImpl::NormImpl(const TransformerConfig& config, at::ScalarType type, const TensorSplit& split)
    : style(config.style), epsilon(config.norm_epsilon), tensor(split) {
  weight = register_parameter("weight", at::ones({config.width}, type));
  if (style == TransformerConfig::Style::Gpt2)
    bias = register_parameter("bias", at::zeros({config.width}, type));
}

at::Tensor NormImpl::forward(const at::Tensor& x) {
  std::vector<at::Tensor> own = {weight, bias};
  if (tensor.shards_tokens()) own = tensor_parallel::branch_parameters(tensor.ranks, own);
  if (style == TransformerConfig::Style::Gpt2)
    return at::layer_norm(x, {weight.numel()}, own[0], own[1], epsilon);
  return rms_norm(x, own[0], epsilon);
}

}  // namespace trestle::models
