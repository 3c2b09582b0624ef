#include "trestle/models/transformer/attention.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/clamp_min.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <utility>
#include <vector>

#include "trestle/recompute/checkpoint.h"
#include "trestle/tensor_parallel/operators.h"

namespace trestle::models {

namespace {

ProjectionOptions qkv_options(const TransformerConfig& config, const LowRankOptions& adapters,
                              const TensorSplit& tensor) {
  const bool gpt2 = config.style == TransformerConfig::Style::Gpt2;
  const auto part = [&](const char* name, std::int64_t heads, const char* target) {
    return ProjectionPart{name, heads * config.head_size, heads, gpt2 ? "" : target};
  };
  return {.inputs = config.width,
          .parts = {part("q", config.heads, "q_proj"), part("k", config.kv_heads, "k_proj"),
                    part("v", config.kv_heads, "v_proj")},
          .target = gpt2 ? "c_attn" : "",
          .bias = config.qkv_bias ? Bias::Added : Bias::None,
          .adapters = adapters,
          .split = ProjectionSplit::Columns,
          .tensor = tensor};
}

ProjectionOptions out_options(const TransformerConfig& config, const LowRankOptions& adapters,
                              const TensorSplit& tensor) {
  const bool gpt2 = config.style == TransformerConfig::Style::Gpt2;
  return {.inputs = config.heads * config.head_size,
          .parts = {{"out", config.width}},
          .target = gpt2 ? "c_proj" : "o_proj",
          .bias = config.out_bias ? Bias::Added : Bias::None,
          .adapters = adapters,
          .split = ProjectionSplit::Rows,
          .tensor = tensor};
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
                             double out_deviation, const TensorSplit& tensor)
    : config(given), core(chosen), tensor_(tensor.of(drawn.module)) {
  const auto add = [&](const std::string& name, const ProjectionOptions& options,
                       double deviation) {
    return register_module(name, Projection(options, drawn.of(name), deviation));
  };
  qkv = add("qkv", qkv_options(config, adapters, tensor.of(drawn.module + ".qkv")),
            config.initial_deviation);
  out = add("out", out_options(config, adapters, tensor.of(drawn.module + ".out")), out_deviation);
  if (config.style == TransformerConfig::Style::Gpt2) return;
  const std::vector<double> exact = rotary_frequencies(config);
  frequencies = at::empty({static_cast<std::int64_t>(exact.size())}, at::kFloat);
  for (std::size_t i = 0; i < exact.size(); ++i)
    frequencies.mutable_data_ptr<float>()[i] = static_cast<float>(exact[i]);
}

bool AttentionImpl::gathers_keys() const { return config.kv_heads % tensor_.ranks.size() != 0; }

// [N, T, own rows of qkv] to [N, T, own queries, and one head of keys and one of values].
at::Tensor AttentionImpl::with_gathered_keys(const at::Tensor& own) {
  using tensor_parallel::Sharded;
  const auto& ranks = tensor_.ranks;
  const nn::IndexRange queries = qkv->parts[0];
  const std::int64_t size = config.head_size, columns = config.kv_heads * size;
  const std::int64_t kept = queries.size, shared = ranks.own(columns).size;
  // Keys and values travel as one message.
  const at::Tensor keys_and_values = own.narrow(-1, kept, 2 * shared).unflatten(-1, {2, shared});
  const at::Tensor all =
      tensor_parallel::gather_branched(ranks, Sharded(keys_and_values, -1, columns)).tensor;
  const std::int64_t head = ranks.rank() * config.kv_heads / ranks.size();
  return at::cat({own.narrow(-1, 0, kept), all.narrow(-1, head * size, size).flatten(-2)}, -1);
}

AttentionImpl::Heads AttentionImpl::heads_of(const at::Tensor& x, const Rotation& rotation,
                                             std::int64_t tokens) {
  const std::int64_t queries = qkv->parts[0].size / config.head_size;
  const std::int64_t keys = gathers_keys() ? 1 : qkv->parts[1].size / config.head_size;
  const std::int64_t values = keys;
  at::Tensor rows = qkv->forward(x, tokens);
  if (gathers_keys()) rows = with_gathered_keys(rows);
  const at::Tensor heads = rows.unflatten(-1, {queries + keys + values, config.head_size});
  // split() has one backward for all parts; queries and keys are rotated together.
  std::vector<at::Tensor> found;
  if (rotation.cosine.defined()) {
    const std::vector<at::Tensor> all = heads.split_with_sizes({queries + keys, values}, 2);
    found = rotate(all[0], rotation).split_with_sizes({queries, keys}, 2);
    // A view of the values would keep the rows of unrotated queries and keys until the backward.
    found.push_back(at::GradMode::is_enabled() ? all[1].clone() : all[1]);
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

at::Tensor AttentionImpl::joined(const at::Tensor& attended, std::int64_t tokens) {
  return out->forward(attended.transpose(1, 2).flatten(2), tokens);
}

at::Tensor AttentionImpl::forward(const at::Tensor& x, const at::Tensor& given) {
  const bool shards = tensor_.shards_tokens();
  const std::int64_t tokens = shards ? given.size(1) : x.size(1);
  const bool placed = given.defined() && given.size(0) > 0;
  const at::Tensor places = placed ? given : at::Tensor();
  Rotation rotated;
  if (config.style != TransformerConfig::Style::Gpt2)
    rotated =
        rotation(placed ? places.clamp_min(0)
                        : at::arange(tokens, x.options().dtype(at::kLong).requires_grad(false)));
  const auto [q, k, v] = heads_of(x, rotated, shards ? tokens : 0);
  const nn::DropoutSlice own_heads{
      .dimension = 1, .begin = tensor_.ranks.own(config.heads).begin, .whole = config.heads};
  const AttendOptions options{.core = core,
                              .dropout = is_training() ? config.dropout.attention : 0,
                              .mask = placed ? document_mask(places) : at::Tensor(),
                              .heads = own_heads};
  const auto attended = [options](const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
    return attend(q, k, v, options);
  };
  const at::Tensor y = recomputes_core ? nn::checkpoint(attended, q, k, v) : attended(q, k, v);
  return joined(y, shards ? tokens : 0);
}

at::Tensor AttentionImpl::extend(const at::Tensor& x, const Rotation& rotation,
                                 const at::Tensor& mask, KeyValueCache& cache) {
  const auto [q, k, v] = heads_of(x, rotation, 0);
  const auto [keys, values] = cache.append(k, v, config.context);
  return joined(attend(q, keys, values, {.core = core, .dropout = 0, .mask = mask}), 0);
}

}  // namespace trestle::models
