#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/DeviceType.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "trestle/nn/keyed_dropout.h"

// The core of attention: softmax(q k^T / sqrt(head_size)) v, causal.
namespace trestle::models {

// Which code computes it. Results differ by rounding.
enum class AttentionCore {
  Fused,    // libtorch's kernel, which holds no [queries, keys] matrix; also on virtual devices
  Written,  // written out with products and a softmax; the only one with attention dropout
};

// "fused" or "written". Throws UsageError for another word.
AttentionCore parse_attention_core(std::string_view word);
std::string to_word(AttentionCore core);

// The operator that computes a core on a type of device: "softmax of products" for Written.
std::string operator_of(AttentionCore core, c10::DeviceType device);

struct AttendOptions {
  AttentionCore core = AttentionCore::Fused;
  double dropout = 0;  // of the attention's weights; above 0 only with Written
  // Which keys a query may see, added to the scores: float [N or 1, 1, queries, keys] of 0 and
  // -infinity. Undefined: all keys up to the query's own position, where the queries are the last
  // positions of the keys.
  at::Tensor mask = {};
  // With dropout: which heads of how many these are (dimension 1), if other ranks have the rest.
  std::optional<nn::DropoutSlice> heads = {};
};

// Queries [N, heads, T, head_size], keys and values [N, kv_heads, S, head_size] with S >= T and
// heads a multiple of kv_heads: head h uses the keys of head h / (heads / kv_heads). Returns [N,
// heads, T, head_size]. A query without an allowed key gives 0.
at::Tensor attend(const at::Tensor& queries, const at::Tensor& keys, const at::Tensor& values,
                  const AttendOptions& options);

// The mask of packed documents or padding for queries and keys at the same places [N, T]: position
// 0 begins a document, positions below 0 are padding. A query sees the keys of its own document up
// to its own place, and padding sees nothing and is seen by nothing. Float [N, 1, T, T].
at::Tensor document_mask(const at::Tensor& places);

// The mask of rows that are padded on the left, each by padding[i] places (int64 [N]), where the
// `queries` are the last of `keys` places. A query sees the keys of its row up to its own place;
// padding sees nothing and is seen by nothing. Float [N, 1, queries, keys].
at::Tensor left_padding_mask(const at::Tensor& padding, std::int64_t queries, std::int64_t keys);

}  // namespace trestle::models
