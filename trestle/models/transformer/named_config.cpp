#include "trestle/base/choose.h"
#include "trestle/models/transformer/read_config.h"

namespace trestle::models {

namespace {

struct NamedConfig {
  std::string_view name;
  TransformerConfig config;
};

// Width, layers and heads; all heads have 64 rows.
TransformerConfig gpt2_of(std::int64_t width, std::int64_t layers, std::int64_t heads) {
  return {.width = width,
          .layers = layers,
          .heads = heads,
          .kv_heads = heads,
          .head_size = 64,
          .mlp = 4 * width,
          .begin_token = 50256,
          .end_tokens = {50256}};
}

// Style, activation and biases, which all Llama models here share.
TransformerConfig llama_of(TransformerConfig config) {
  config.style = TransformerConfig::Style::Llama;
  config.activation = TransformerConfig::Activation::Silu;
  config.qkv_bias = config.out_bias = config.mlp_bias = false;
  return config;
}

TransformerConfig llama3_of(double factor, TransformerConfig config) {
  config.vocabulary = 128256;
  config.context = 131072;
  config.kv_heads = 8;
  config.rope = {.theta = 500000,
                 .scaling = TransformerConfig::Rope::Scaling::Llama3,
                 .factor = factor,
                 .low_frequency_factor = 1,
                 .high_frequency_factor = 4,
                 .original_context = 8192};
  config.begin_token = 128000;
  config.end_tokens = {128001};
  return llama_of(config);
}

const std::vector<NamedConfig>& all_named_configs() {
  static const std::vector<NamedConfig> all = {
      {"gpt2", gpt2_of(768, 12, 12)},
      {"gpt2-medium", gpt2_of(1024, 24, 16)},
      {"gpt2-large", gpt2_of(1280, 36, 20)},
      {"gpt2-xl", gpt2_of(1600, 48, 25)},
      {"llama-3.2-1b",
       llama3_of(32, {.width = 2048, .layers = 16, .heads = 32, .head_size = 64, .mlp = 8192})},
      {"llama-3.2-3b",
       llama3_of(32, {.width = 3072, .layers = 28, .heads = 24, .head_size = 128, .mlp = 8192})},
      {"llama-3.1-8b", llama3_of(8, {.width = 4096,
                                     .layers = 32,
                                     .heads = 32,
                                     .head_size = 128,
                                     .mlp = 14336,
                                     .tied_head = false})},
      {"smollm2-135m", llama_of({.vocabulary = 49152,
                                 .context = 8192,
                                 .width = 576,
                                 .layers = 30,
                                 .heads = 9,
                                 .kv_heads = 3,
                                 .head_size = 64,
                                 .mlp = 1536,
                                 .initial_deviation = 0.041666666666666664,
                                 .rope = {.theta = 100000},
                                 .begin_token = 0,
                                 .end_tokens = {0}})}};
  return all;
}

}  // namespace

TransformerConfig named_config(std::string_view name) {
  return choose("model", name, all_named_configs()).config;
}

std::vector<std::string> config_names() {
  std::vector<std::string> names;
  for (const NamedConfig& entry : all_named_configs()) names.emplace_back(entry.name);
  return names;
}

std::int64_t parameter_count(const TransformerConfig& config) {
  const bool is_gpt2 = config.style == TransformerConfig::Style::Gpt2;
  const auto projection = [](std::int64_t inputs, std::int64_t outputs, bool bias) {
    return outputs * (inputs + (bias ? 1 : 0));
  };
  const std::int64_t queries = config.heads * config.head_size;
  const std::int64_t keys = config.kv_heads * config.head_size;
  const std::int64_t norm = config.width * (is_gpt2 ? 2 : 1);
  const std::int64_t block =
      2 * norm + projection(config.width, queries + 2 * keys, config.qkv_bias) +
      projection(queries, config.width, config.out_bias) +
      projection(config.width, config.mlp, config.mlp_bias) * (is_gpt2 ? 1 : 2) +
      projection(config.mlp, config.width, config.mlp_bias);
  const std::int64_t table = table_rows(config) * config.width;
  return table * (config.tied_head ? 1 : 2) + (is_gpt2 ? config.context * config.width : 0) +
         config.layers * block + norm;
}

}  // namespace trestle::models
