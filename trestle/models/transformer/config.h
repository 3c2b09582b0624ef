#pragma once

#include <cstdint>
#include <optional>
#include <vector>

// The sizes and choices of a GPT-2 or Llama style model. Needs no torch.
namespace trestle::models {

struct TransformerConfig {
  enum class Style { Gpt2, Llama };
  enum class Activation { GeluTanh, Gelu, Silu, Relu };

  Style style = Style::Gpt2;
  std::int64_t vocabulary = 50257;
  // The tables of the vocabulary have rows of zeros up to a multiple of this (table_rows()).
  std::int64_t vocabulary_multiple = 1;
  std::int64_t context = 1024;  // the largest number of tokens in a row
  std::int64_t width = 768;
  std::int64_t layers = 12;
  std::int64_t heads = 12;
  std::int64_t kv_heads = 12;   // of keys and values; divides heads
  std::int64_t head_size = 64;  // rows of each head in the projections
  std::int64_t mlp = 3072;      // inner width of a block's MLP
  Activation activation = Activation::GeluTanh;
  double norm_epsilon = 1e-5;
  bool tied_head = true;  // the head's weight is the embedding's table
  bool qkv_bias = true;   // of the projections of queries, keys and values
  bool out_bias = true;   // of the attention's output projection
  bool mlp_bias = true;
  double initial_deviation = 0.02;  // of the initial weights

  // Shares of values that training sets to 0.
  struct Dropout {
    double embedding = 0;
    double residual = 0;
    double attention = 0;

    bool operator==(const Dropout&) const = default;
  } dropout = {};

  // Rotary positions; Llama only.
  struct Rope {
    enum class Scaling { None, Linear, Llama3 };
    double theta = 10000;
    Scaling scaling = Scaling::None;
    double factor = 1;
    double low_frequency_factor = 1;
    double high_frequency_factor = 4;
    std::int64_t original_context = 8192;

    bool operator==(const Rope&) const = default;
  } rope = {};

  std::optional<std::int64_t> begin_token = {};  // BOS
  std::vector<std::int64_t> end_tokens = {};     // generation ends after any of these

  bool operator==(const TransformerConfig&) const = default;
};

// The rows of the embedding's and the head's tables: the vocabulary, rounded up to a multiple of
// vocabulary_multiple. The rows from `vocabulary` on are padding, for fast products and even
// shards: they are zeros, no id reaches them, no score comes from them, their gradient is zero, and
// files do not have them.
constexpr std::int64_t table_rows(const TransformerConfig& config) {
  const std::int64_t multiple = config.vocabulary_multiple;
  return (config.vocabulary + multiple - 1) / multiple * multiple;
}

}  // namespace trestle::models
