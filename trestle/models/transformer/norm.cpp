#include "trestle/models/transformer/norm.h"

#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>

namespace trestle::models {

NormImpl::NormImpl(const TransformerConfig& config, at::ScalarType type)
    : style(config.style), epsilon(config.norm_epsilon) {
  weight = register_parameter("weight", at::ones({config.width}, type));
  if (style == TransformerConfig::Style::Gpt2)
    bias = register_parameter("bias", at::zeros({config.width}, type));
}

at::Tensor NormImpl::forward(const at::Tensor& x) {
  if (style == TransformerConfig::Style::Gpt2)
    return at::layer_norm(x, {weight.numel()}, weight, bias, epsilon);
  const at::Tensor exact = x.to(at::kFloat);
  const at::Tensor scale = at::rsqrt(exact.square().mean(-1, /*keepdim=*/true) + epsilon);
  return (exact * scale).to(x.scalar_type()) * weight;
}

}  // namespace trestle::models
