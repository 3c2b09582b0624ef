#include "trestle/train/language/transformer_recipe.h"

#include <algorithm>
#include <filesystem>

#include "trestle/base/choose.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/models/transformer/gguf_config.h"
#include "trestle/models/transformer/read_config.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/tokens/files/token_set.h"
#include "trestle/tokens/tokenizers/gguf_file.h"

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

// The file with the sizes of a model in public formats; empty without one.
std::string config_of_weights(const std::filesystem::path& weights) {
  if (weights.empty()) return {};
  if (tokens::is_gguf_file(weights)) return weights.string();
  const bool is_folder = std::filesystem::is_directory(weights);
  const auto file = (is_folder ? weights : weights.parent_path()) / "config.json";
  return std::filesystem::exists(file) ? file.string() : std::string();
}

TransformerConfig given_config(const recipe::Recipe& recipe) {
  const Style style = recipe.model.name == "llama" ? Style::Llama : Style::Gpt2;
  const bool own = recipe.transformer.config.empty() && recipe.transformer.layers == 0;
  const std::string given =
      own ? config_of_weights(recipe.model.weights) : recipe.transformer.config;
  if (given.empty()) return standard(style);
  const std::vector<std::string> known = models::config_names();
  const bool named = std::find(known.begin(), known.end(), given) != known.end();
  if (!named && !std::filesystem::exists(given))
    throw UsageError(text("'config' in [transformer]: there is no file '", given,
                          "', and no model of that name", did_you_mean(given, known)),
                     {.hint = "Known names: " + join(known, ", ") + "."});
  TransformerConfig config = named                         ? models::named_config(given)
                             : tokens::is_gguf_file(given) ? models::read_gguf_config(given)
                                                           : models::read_config(given);
  if (config.style != style)
    throw UsageError(text("'config' in [transformer] is that of a ",
                          style == Style::Gpt2 ? "llama" : "gpt2", " model, and 'name' in [model] ",
                          "is \"", recipe.model.name, "\""));
  return config;
}

std::int64_t vocabulary_of_data(const recipe::Recipe& recipe) {
  const auto& data = recipe.data;
  if (data.name != "tokens" || data.tokens.empty()) return 0;
  return tokens::TokenSet(data.tokens).vocabulary();
}

TransformerConfig::Activation activation_of(const std::string& word) {
  using Activation = TransformerConfig::Activation;
  if (word == "gelu") return Activation::Gelu;
  if (word == "silu") return Activation::Silu;
  return word == "relu" ? Activation::Relu : Activation::GeluTanh;
}

// The choices of a recipe that are no sizes.
void set_choices(const recipe::Recipe::Transformer& given, TransformerConfig& config) {
  if (given.activation != "auto") config.activation = activation_of(given.activation);
  if (given.norm_epsilon > 0) config.norm_epsilon = given.norm_epsilon;
  if (given.rope_theta > 0) config.rope.theta = given.rope_theta;
  if (given.initial_deviation > 0) config.initial_deviation = given.initial_deviation;
  if (given.tied != "auto") config.tied_head = given.tied == "yes";
  if (given.dropout > 0) config.dropout.embedding = config.dropout.residual = given.dropout;
  if (given.attention_dropout > 0) config.dropout.attention = given.attention_dropout;
}

void divide_heads(TransformerConfig& config) {
  if (config.heads > 0 && config.width % config.heads != 0)
    throw UsageError(text("'heads' in [transformer] is ", config.heads,
                          ", which does not divide the width of ", config.width),
                     {.hint = "'width' in [model] must be a multiple of 'heads'."});
  if (config.heads > 0) config.head_size = config.width / config.heads;
}

// A run writes its model for Python's transformers, whose GPT-2 has no other heads.
void check_heads_of_gpt2(const TransformerConfig& config) {
  const char* const hint =
      "Leave 'kv_heads' and 'head_size' out, or use name = \"llama\" in [model].";
  if (config.kv_heads != config.heads)
    throw UsageError(text("'kv_heads' in [transformer] is ", config.kv_heads,
                          ", but a gpt2 has one for each of its ", config.heads, " 'heads'"),
                     {.hint = hint});
  if (config.head_size * config.heads != config.width)
    throw UsageError(text("'head_size' in [transformer] is ", config.head_size, ", but ",
                          config.heads, " heads of a gpt2 share its width of ", config.width),
                     {.hint = hint});
}

// The model refuses them too; this message names the recipe field.
void check_targets(const std::string& model, const std::vector<std::string>& targets) {
  TransformerConfig config;
  config.style = model == "gpt2" ? Style::Gpt2 : Style::Llama;
  const std::vector<std::string> known = models::adapter_targets(config);
  for (const std::string& target : targets)
    if (std::find(known.begin(), known.end(), target) == known.end())
      throw UsageError(text("'adapter_targets' in [adapters]: no part of a ", model, " is named '",
                            target, "'", did_you_mean(target, known)),
                       {.hint = text("A ", model, " has ", join(known, ", "), ".")});
}

}  // namespace

bool is_transformer(const recipe::Recipe& recipe) {
  return recipe.model.name == "gpt2" || recipe.model.name == "llama";
}

std::int64_t tokens_of_example(const recipe::Recipe& recipe) {
  if (!is_transformer(recipe) || recipe.data.name != "tokens") return 0;
  return recipe.data.row_tokens > 0 ? recipe.data.row_tokens : recipe.transformer.context;
}

TransformerConfig transformer_config(const recipe::Recipe& recipe) {
  const auto& given = recipe.transformer;
  TransformerConfig config = given_config(recipe);
  set_if_given(config.vocabulary, given.vocabulary);
  config.vocabulary_multiple = given.vocabulary_multiple;
  set_if_given(config.context, given.context);
  set_if_given(config.width, recipe.model.width);
  set_if_given(config.layers, given.layers);
  set_if_given(config.heads, given.heads);
  if (given.heads != 0 && given.kv_heads == 0) config.kv_heads = 0;  // those of the config
  set_if_given(config.kv_heads, given.kv_heads);
  set_if_given(config.mlp, given.mlp);
  if (given.head_size != 0)
    config.head_size = given.head_size;
  else if (config.head_size == 0 || recipe.model.width != 0 || given.heads != 0)
    divide_heads(config);
  if (config.kv_heads == 0) config.kv_heads = config.heads;
  if (config.mlp == 0)
    config.mlp = config.style == Style::Llama ? gated_mlp(config.width) : 4 * config.width;
  if (config.style == Style::Gpt2) check_heads_of_gpt2(config);
  set_choices(given, config);
  if (config.vocabulary == 0) config.vocabulary = vocabulary_of_data(recipe);
  if (config.vocabulary == 0)
    throw UsageError(
        "the model needs the number of tokens of its tokenizer",
        {.hint = "Set 'vocabulary' in [transformer], or 'tokens' in [data] to a folder "
                 "that `trestle text prepare` wrote."});
  return config;
}

checkpoint::PaddedRows padded_rows(const recipe::Recipe& recipe) {
  if (!is_transformer(recipe) || recipe.transformer.vocabulary_multiple == 1) return {};
  const TransformerConfig config = transformer_config(recipe);
  const checkpoint::RowCounts rows{.saved = config.vocabulary,
                                   .in_model = models::table_rows(config)};
  return {{"embed.tokens", rows}, {"head.weight", rows}};
}

models::LowRankOptions adapter_options(const recipe::Recipe& recipe) {
  const auto& given = recipe.adapters;
  models::LowRankOptions options{
      .rank = given.rank, .alpha = given.alpha, .dropout = given.dropout, .targets = given.targets};
  if (options.targets.empty())
    options.targets = recipe.model.name == "gpt2" ? std::vector<std::string>{"c_attn"}
                                                  : std::vector<std::string>{"q_proj", "v_proj"};
  if (options.any()) check_targets(recipe.model.name, options.targets);
  return options;
}

models::FrozenType frozen_type(const recipe::Recipe& recipe) {
  const std::string& word = recipe.adapters.frozen_type;
  if (word == "bf16") return models::FrozenType::BFloat16;
  return word == "int8" ? models::FrozenType::Int8 : models::FrozenType::Float32;
}

recipe::Recipe with_transformer_sizes(recipe::Recipe recipe) {
  if (!is_transformer(recipe)) return recipe;
  const TransformerConfig config = transformer_config(recipe);
  recipe.transformer.vocabulary = config.vocabulary;
  recipe.transformer.context = config.context;
  return recipe;
}

}  // namespace trestle::train
