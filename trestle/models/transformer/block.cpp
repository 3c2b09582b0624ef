#include "trestle/models/transformer/block.h"

#include <ATen/ops/arange.h>

#include <cmath>

#include "trestle/base/error.h"
#include "trestle/nn/keyed_dropout.h"

namespace trestle::models {

BlockImpl::BlockImpl(const TransformerConfig& config, AttentionCore core,
                     const LowRankOptions& adapters, const Drawn& drawn, at::ScalarType norm_type,
                     const TensorSplit& split)
    : dropout(config.dropout.residual), tensor(split) {
  // GPT-2's rule: each residual sum has 2 x layers terms.
  const double residual_deviation =
      config.initial_deviation / std::sqrt(2.0 * static_cast<double>(config.layers));
  attention_norm =
      register_module("attention_norm", Norm(config, norm_type, tensor.of(drawn.module)));
  attention = register_module("attention", Attention(config, core, adapters, drawn.of("attention"),
                                                     residual_deviation, tensor));
  mlp_norm = register_module("mlp_norm", Norm(config, norm_type, tensor.of(drawn.module)));
  mlp = register_module("mlp", Mlp(config, adapters, drawn.of("mlp"), residual_deviation, tensor));
}

at::Tensor BlockImpl::forward(const at::Tensor& x, std::optional<at::Tensor> places) {
  if (cache && !(places && places->defined())) {
    const at::Tensor positions = at::arange(cache->tokens, cache->tokens + x.size(1),
                                            x.options().dtype(at::kLong).requires_grad(false));
    return extend(x, attention->rotation(positions), {}, *cache);
  }
  const at::Tensor all_places = places.value_or(at::Tensor());
  if (tensor.shards_tokens() && !all_places.defined())
    throw UsageError(
        "a block on shards of the tokens takes places, which say how many tokens there "
        "are: [0, T] for rows without documents");
  const std::int64_t tokens = tensor.shards_tokens() ? all_places.size(1) : 0;
  const auto slice = tensor.dropout_slice(tokens);
  const auto dropped = [&](const at::Tensor& y) {
    return nn::keyed_dropout(y, dropout, is_training(), slice);
  };
  const at::Tensor y = x + dropped(attention->forward(attention_norm->forward(x), all_places));
  return y + dropped(mlp->forward(mlp_norm->forward(y), tokens));
}

at::Tensor BlockImpl::extend(const at::Tensor& x, const Rotation& rotation, const at::Tensor& mask,
                             KeyValueCache& cache) {
  const at::Tensor y = x + attention->extend(attention_norm->forward(x), rotation, mask, cache);
  return y + mlp->forward(mlp_norm->forward(y));
}

}  // namespace trestle::models
