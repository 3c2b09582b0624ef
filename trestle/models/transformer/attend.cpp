#include "trestle/models/transformer/attend.h"

#include <ATen/autocast_mode.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/matmul.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>

#include <cmath>
#include <limits>
#include <tuple>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/nn/keyed_dropout.h"

namespace trestle::models {

namespace {

constexpr double never = -std::numeric_limits<double>::infinity();

at::Tensor repeated(const at::Tensor& x, std::int64_t heads) {
  const std::int64_t kv_heads = x.size(1);
  if (kv_heads == heads) return x;
  return x.unsqueeze(2)
      .expand({x.size(0), kv_heads, heads / kv_heads, x.size(2), x.size(3)})
      .reshape({x.size(0), heads, x.size(2), x.size(3)});
}

// Queries are the last `queries` places of `keys` places. libtorch's own causal option aligns them
// with the first ones.
at::Tensor causal_mask(std::int64_t queries, std::int64_t keys, const at::Tensor& like,
                       at::ScalarType type = at::kFloat) {
  const auto options = like.options().dtype(at::kLong);
  const at::Tensor places = at::arange(keys - queries, keys, options).unsqueeze(1);
  const at::Tensor allowed = at::arange(keys, options).unsqueeze(0) <= places;
  const at::Tensor zeros = at::zeros({queries, keys}, like.options().dtype(type));
  return zeros.masked_fill(allowed.logical_not(), never).view({1, 1, queries, keys});
}

at::Tensor fused(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                 const at::Tensor& mask, bool causal) {
  std::optional<at::Tensor> added;
  if (mask.defined()) added = mask.to(q.scalar_type());
  if (q.is_cuda()) return at::scaled_dot_product_attention(q, k, v, added, 0, causal);
  // The operator that scaled_dot_product_attention() chooses on the CPU. Called directly, virtual
  // devices have it too.
  return std::get<0>(
      at::_scaled_dot_product_flash_attention_for_cpu(q, k, v, /*dropout_p=*/0, causal, added));
}

// The softmax over the keys that the mask allows; a row without any gives 0.
at::Tensor masked_weights(const at::Tensor& scores, const at::Tensor& mask) {
  // A row of -infinity would become NaN. Its largest value is replaced by 0 and its weights by 0.
  const at::Tensor none = mask.amax(-1, /*keepdim=*/true) == never;
  return at::softmax((scores + mask).masked_fill(none, 0), -1).masked_fill(none, 0);
}

// The type of scores and weights, of which the backward keeps some. Those of a bf16 or fp16 model
// have its type; the softmax computes in fp32 inside. Autocast's softmax is fp32.
at::ScalarType type_of_scores(const at::Tensor& q) {
  const bool autocast = at::autocast::is_autocast_enabled(q.device().type());
  return at::isReducedFloatingType(q.scalar_type()) && !autocast ? q.scalar_type() : at::kFloat;
}

// `mask` is undefined for all keys up to the query's own place.
at::Tensor written(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                   const at::Tensor& mask, const AttendOptions& options) {
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  const at::ScalarType type = type_of_scores(q);
  const at::Tensor scores = at::matmul(q * scale, k.transpose(-2, -1)).to(type);
  // Without a given mask each query has a key. The weights then are the softmax's own result, which
  // the backward keeps once.
  at::Tensor weights = mask.defined()
                           ? masked_weights(scores, mask.to(type))
                           : at::softmax(scores + causal_mask(q.size(2), k.size(2), q, type), -1);
  if (options.dropout > 0)
    weights = nn::keyed_dropout(weights, options.dropout, /*training=*/true, options.heads);
  return at::matmul(weights.to(v.scalar_type()), v);
}

// One query behind its keys, as in generation. The heads that share keys are the rows of one
// product, so that keys are not repeated. libtorch's kernel takes ten times as long in bf16, and so
// do its small products of bf16 matrices on processors without bf16 instructions: those are made in
// fp32. Without a mask all keys are seen.
at::Tensor one_query(const at::Tensor& q, const at::Tensor& k, const at::Tensor& v,
                     const at::Tensor& mask) {
  const double scale = 1 / std::sqrt(static_cast<double>(q.size(-1)));
  const at::ScalarType type = q.is_cuda() ? q.scalar_type() : at::kFloat;
  const at::Tensor rows =
      q.reshape({q.size(0), k.size(1), q.size(1) / k.size(1), q.size(3)}).to(type);
  const at::Tensor scores =
      at::matmul(rows, k.to(type).transpose(-2, -1)).to(at::kFloat).mul_(scale);
  const at::Tensor weights =
      mask.defined() ? masked_weights(scores, mask) : at::softmax(scores, -1);
  return at::matmul(weights.to(type), v.to(type)).to(q.scalar_type()).view(q.sizes());
}

}  // namespace

AttentionCore parse_attention_core(std::string_view word) {
  if (word == "fused") return AttentionCore::Fused;
  if (word == "written") return AttentionCore::Written;
  throw UsageError(text("attention '", word, "' is neither 'fused' nor 'written'"));
}

std::string to_word(AttentionCore core) {
  return core == AttentionCore::Fused ? "fused" : "written";
}

std::string operator_of(AttentionCore core, c10::DeviceType device) {
  if (core == AttentionCore::Written) return "softmax of products";
  return device == c10::DeviceType::CUDA ? "scaled_dot_product_attention"
                                         : "_scaled_dot_product_flash_attention_for_cpu";
}

at::Tensor attend(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                  const AttendOptions& options) {
  const bool alone = queries.size(2) == 1 && options.dropout == 0;
  if (alone && !queries.requires_grad() && !keys.requires_grad())
    return one_query(queries, keys, values, options.mask);
  const at::Tensor k = repeated(keys, queries.size(1));
  const at::Tensor v = repeated(values, queries.size(1));
  const std::int64_t count = queries.size(2), all = keys.size(2);
  const bool whole = !options.mask.defined() && count == all;
  at::Tensor mask = options.mask;
  if (options.core == AttentionCore::Written) return written(queries, k, v, mask, options);
  if (!mask.defined() && !whole && count > 1) mask = causal_mask(count, all, queries);
  return fused(queries, k, v, mask, whole);
}

at::Tensor document_mask(const at::Tensor& places) {
  const at::Tensor padding = places < 0;
  const at::Tensor document = (places == 0).cumsum(1);
  const at::Tensor row = at::arange(places.size(1), places.options());
  at::Tensor allowed = document.unsqueeze(2) == document.unsqueeze(1);
  allowed = allowed.logical_and(row.unsqueeze(0) <= row.unsqueeze(1));
  allowed = allowed.logical_and(padding.unsqueeze(2).logical_not());
  allowed = allowed.logical_and(padding.unsqueeze(1).logical_not());
  const auto floats = places.options().dtype(at::kFloat);
  return at::zeros(allowed.sizes(), floats).masked_fill(allowed.logical_not(), never).unsqueeze(1);
}

at::Tensor left_padding_mask(const at::Tensor& padding, std::int64_t queries, std::int64_t keys) {
  const at::Tensor column = at::arange(keys, padding.options());
  const at::Tensor place = at::arange(keys - queries, keys, padding.options()).unsqueeze(1);
  const at::Tensor behind_padding = column >= padding.view({-1, 1, 1});
  const at::Tensor allowed = (column <= place).logical_and(behind_padding).unsqueeze(1);
  return at::zeros(allowed.sizes(), padding.options().dtype(at::kFloat))
      .masked_fill(allowed.logical_not(), never);
}

}  // namespace trestle::models
