#include "trestle/models/transformer/attention.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <utility>
#include <vector>

namespace trestle::models {

namespace {

ProjectionOptions qkv_options(const TransformerConfig& config, const LowRankOptions& adapters) {
  const bool gpt2 = config.style == TransformerConfig::Style::Gpt2;
  const auto part = [&](const char* name, std::int64_t heads, const char* target) {
    return ProjectionPart{name, heads * config.head_size, heads, gpt2 ? "" : target};
  };
  return {.inputs = config.width,
          .parts = {part("q", config.heads, "q_proj"), part("k", config.kv_heads, "k_proj"),
                    part("v", config.kv_heads, "v_proj")},
          .target = gpt2 ? "c_attn" : "",
          .bias = config.qkv_bias ? Bias::Added : Bias::None,
          .adapters = adapters};
}

ProjectionOptions out_options(const TransformerConfig& config, const LowRankOptions& adapters) {
  const bool gpt2 = config.style == TransformerConfig::Style::Gpt2;
  return {.inputs = config.heads * config.head_size,
          .parts = {{"out", config.width}},
          .target = gpt2 ? "c_proj" : "o_proj",
          .bias = config.out_bias ? Bias::Added : Bias::None,
          .adapters = adapters};
}

}  // namespace

std::pair<at::Tensor, at::Tensor> KeyValueCache::append(const at::Tensor& new_keys,
                                                        const at::Tensor& new_values,
                                                        std::int64_t room) {
  const std::int64_t count = new_keys.size(2);
  if (!keys.defined() || tokens + count > keys.size(2)) {
    std::vector<std::int64_t> sizes = new_keys.sizes().vec();
    constexpr std::int64_t least = 256;
    sizes[2] = std::max(std::min(room, std::max(least, 2 * (tokens + count))), tokens + count);
    at::Tensor more_keys = at::empty(sizes, new_keys.options());
    at::Tensor more_values = at::empty(sizes, new_values.options());
    if (tokens > 0) {
      more_keys.narrow(2, 0, tokens).copy_(keys.narrow(2, 0, tokens));
      more_values.narrow(2, 0, tokens).copy_(values.narrow(2, 0, tokens));
    }
    keys = std::move(more_keys);
    values = std::move(more_values);
  }
  keys.narrow(2, tokens, count).copy_(new_keys);
  values.narrow(2, tokens, count).copy_(new_values);
  tokens += count;
  return {keys.narrow(2, 0, tokens), values.narrow(2, 0, tokens)};
}

void KeyValueCache::keep(const at::Tensor& rows, std::int64_t skipped) {
  keys = keys.narrow(2, skipped, tokens - skipped).index_select(0, rows);
  values = values.narrow(2, skipped, tokens - skipped).index_select(0, rows);
  tokens -= skipped;
}

AttentionImpl::AttentionImpl(const TransformerConfig& given, AttentionCore chosen,
                             const LowRankOptions& adapters, const Drawn& drawn,
                             double out_deviation)
    : config(given), core(chosen) {
  qkv = register_module(
      "qkv", Projection(qkv_options(config, adapters), drawn.of("qkv"), config.initial_deviation));
  out = register_module("out",
                        Projection(out_options(config, adapters), drawn.of("out"), out_deviation));
  if (config.style == TransformerConfig::Style::Gpt2) return;
  const std::vector<double> exact = rotary_frequencies(config);
  frequencies = at::empty({static_cast<std::int64_t>(exact.size())}, at::kFloat);
  for (std::size_t i = 0; i < exact.size(); ++i)
    frequencies.mutable_data_ptr<float>()[i] = static_cast<float>(exact[i]);
}

AttentionImpl::Heads AttentionImpl::heads_of(const at::Tensor& x, const Rotation& rotation) {
  const std::vector<ProjectionPart>& parts = qkv->options.parts;
  const std::int64_t queries = parts[0].heads, keys = parts[1].heads, values = parts[2].heads;
  const at::Tensor heads =
      qkv->forward(x).unflatten(-1, {queries + keys + values, config.head_size});
  // split() has one backward for all parts; queries and keys are rotated together.
  std::vector<at::Tensor> found;
  if (rotation.cosine.defined()) {
    const std::vector<at::Tensor> all = heads.split_with_sizes({queries + keys, values}, 2);
    found = rotate(all[0], rotation).split_with_sizes({queries, keys}, 2);
    found.push_back(all[1]);
  } else {
    found = heads.split_with_sizes({queries, keys, values}, 2);
  }
  return {found[0].transpose(1, 2), found[1].transpose(1, 2), found[2].transpose(1, 2)};
}

Rotation AttentionImpl::rotation(const at::Tensor& positions) {
  if (config.style == TransformerConfig::Style::Gpt2) return {};
  at::Tensor placed;
  {
    const std::scoped_lock lock(moving_);  // several threads may generate with one model
    if (frequencies.device() != positions.device())
      frequencies = frequencies.to(positions.device());
    placed = frequencies;
  }
  return rotation_at(positions, placed);
}

at::Tensor AttentionImpl::joined(const at::Tensor& attended) {
  return out->forward(attended.transpose(1, 2).flatten(2));
}

at::Tensor AttentionImpl::forward(const at::Tensor& x, const at::Tensor& places) {
  Rotation rotated;
  if (config.style != TransformerConfig::Style::Gpt2)
    rotated =
        rotation(places.defined()
                     ? places.clamp_min(0)
                     : at::arange(x.size(1), x.options().dtype(at::kLong).requires_grad(false)));
  const auto [q, k, v] = heads_of(x, rotated);
  return joined(attend(q, k, v,
                       {.core = core,
                        .dropout = is_training() ? config.dropout.attention : 0,
                        .mask = places.defined() ? document_mask(places) : at::Tensor()}));
}

at::Tensor AttentionImpl::extend(const at::Tensor& x, const Rotation& rotation,
                                 const at::Tensor& mask, KeyValueCache& cache) {
  const auto [q, k, v] = heads_of(x, rotation);
  const auto [keys, values] = cache.append(k, v, config.context);
  return joined(attend(q, keys, values, {.core = core, .dropout = 0, .mask = mask}));
}

}  // namespace trestle::models
