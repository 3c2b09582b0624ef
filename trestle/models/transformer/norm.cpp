#include "trestle/models/transformer/norm.h"

#include <ATen/ops/layer_norm.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/rsqrt.h>
#include <ATen/ops/zeros.h>

#include <vector>

#include "trestle/tensor_parallel/operators.h"

namespace trestle::models {

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
  const at::Tensor exact = x.to(at::kFloat);
  const at::Tensor scale = at::rsqrt(exact.square().mean(-1, /*keepdim=*/true) + epsilon);
  return (exact * scale).to(x.scalar_type()) * own[0];
}

}  // namespace trestle::models
