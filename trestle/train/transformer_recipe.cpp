#include "trestle/train/transformer_recipe.h"

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle::train {

namespace {

using models::TransformerConfig;
using Style = TransformerConfig::Style;

void set_if_given(std::int64_t& size, std::int64_t given) {
  if (given != 0) size = given;
}

// Llama's rule for the inner width: two thirds of 4 times the width, rounded up.
std::int64_t gated_mlp(std::int64_t width) {
  constexpr std::int64_t multiple = 64;
  return (8 * width / 3 + multiple - 1) / multiple * multiple;
}

// The sizes that a recipe without a config begins with. Those that depend on others are 0.
TransformerConfig standard(Style style) {
  TransformerConfig config;
  config.style = style;
  config.vocabulary = config.kv_heads = config.head_size = config.mlp = 0;
  if (style == Style::Gpt2) return config;
  config.activation = TransformerConfig::Activation::Silu;
  config.qkv_bias = config.out_bias = config.mlp_bias = false;
  config.tied_head = false;
  return config;
}

void divide_heads(TransformerConfig& config) {
  if (config.heads > 0 && config.width % config.heads != 0)
    throw UsageError(text("'heads' in [transformer] is ", config.heads,
                          ", which does not divide the width of ", config.width),
                     {.hint = "'width' in [model] must be a multiple of 'heads'."});
  if (config.heads > 0) config.head_size = config.width / config.heads;
}

}  // namespace

bool is_transformer(const recipe::Recipe& recipe) {
  return recipe.model.name == "gpt2" || recipe.model.name == "llama";
}

TransformerConfig transformer_config(const recipe::Recipe& recipe) {
  const auto& given = recipe.transformer;
  TransformerConfig config = standard(recipe.model.name == "llama" ? Style::Llama : Style::Gpt2);
  set_if_given(config.vocabulary, given.vocabulary);
  set_if_given(config.context, given.context);
  set_if_given(config.width, recipe.model.width);
  set_if_given(config.layers, given.layers);
  set_if_given(config.heads, given.heads);
  set_if_given(config.kv_heads, given.kv_heads);
  set_if_given(config.mlp, given.mlp);
  if (config.head_size == 0 || recipe.model.width != 0 || given.heads != 0) divide_heads(config);
  if (config.kv_heads == 0) config.kv_heads = config.heads;
  if (config.mlp == 0)
    config.mlp = config.style == Style::Llama ? gated_mlp(config.width) : 4 * config.width;
  if (given.tied != "auto") config.tied_head = given.tied == "yes";
  if (given.dropout > 0) config.dropout.embedding = config.dropout.residual = given.dropout;
  if (given.attention_dropout > 0) config.dropout.attention = given.attention_dropout;
  if (config.vocabulary == 0)
    throw UsageError("the model needs a number of tokens",
                     {.hint = "Set 'vocabulary' in [transformer]."});
  return config;
}

}  // namespace trestle::train
