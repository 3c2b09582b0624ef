#include "trestle/models/transformer/block.h"

#include <ATen/ops/arange.h>

#include <cmath>

#include "trestle/nn/keyed_dropout.h"

namespace trestle::models {

BlockImpl::BlockImpl(const TransformerConfig& config, AttentionCore core,
                     const LowRankOptions& adapters, const Drawn& drawn, at::ScalarType norm_type)
    : dropout(config.dropout.residual) {
  // GPT-2's rule: each residual sum has 2 x layers terms.
  const double residual_deviation =
      config.initial_deviation / std::sqrt(2.0 * static_cast<double>(config.layers));
  attention_norm = register_module("attention_norm", Norm(config, norm_type));
  attention = register_module(
      "attention", Attention(config, core, adapters, drawn.of("attention"), residual_deviation));
  mlp_norm = register_module("mlp_norm", Norm(config, norm_type));
  mlp = register_module("mlp", Mlp(config, adapters, drawn.of("mlp"), residual_deviation));
}

at::Tensor BlockImpl::forward(const at::Tensor& x, std::optional<at::Tensor> places) {
  if (cache && !(places && places->defined())) {
    const at::Tensor positions = at::arange(cache->tokens, cache->tokens + x.size(1),
                                            x.options().dtype(at::kLong).requires_grad(false));
    return extend(x, attention->rotation(positions), {}, *cache);
  }
  const auto dropped = [this](const at::Tensor& y) {
    return nn::keyed_dropout(y, dropout, is_training());
  };
  const at::Tensor y =
      x + dropped(attention->forward(attention_norm->forward(x), places.value_or(at::Tensor())));
  return y + dropped(mlp->forward(mlp_norm->forward(y)));
}

at::Tensor BlockImpl::extend(const at::Tensor& x, const Rotation& rotation, const at::Tensor& mask,
                             KeyValueCache& cache) {
  const at::Tensor y = x + attention->extend(attention_norm->forward(x), rotation, mask, cache);
  return y + mlp->forward(mlp_norm->forward(y));
}

}  // namespace trestle::models
