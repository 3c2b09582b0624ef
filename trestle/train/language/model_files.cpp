#include "trestle/train/language/model_files.h"

#include <algorithm>

#include "trestle/base/files.h"
#include "trestle/models/transformer/read_config.h"
#include "trestle/tokens/files/token_set.h"
#include "trestle/tokens/saved_tokenizer.h"
#include "trestle/train/language/transformer_recipe.h"

namespace trestle::train {

namespace {

// The model learns the token with which its documents end, and generation ends there.
void add_end_token(const recipe::Recipe& recipe, models::TransformerConfig* config) {
  const auto end = tokens::TokenSet(recipe.data.tokens).end_token();
  if (end && std::ranges::find(config->end_tokens, *end) == config->end_tokens.end())
    config->end_tokens.push_back(*end);
}

}  // namespace

void write_model_files(const recipe::Recipe& recipe, const std::filesystem::path& run_folder) {
  if (!is_transformer(recipe)) return;
  models::TransformerConfig config = transformer_config(recipe);
  if (!recipe.data.tokens.empty()) add_end_token(recipe, &config);
  // The Llama of transformers has neither; recipe.toml keeps them for a resumed run.
  if (config.style == models::TransformerConfig::Style::Llama)
    config.dropout.embedding = config.dropout.residual = 0;
  write_file(run_folder / "config.json", models::to_config_json(config));
  const std::filesystem::path tokenizer = std::filesystem::path(recipe.data.tokens) / "tokenizer";
  if (recipe.data.tokens.empty() || !std::filesystem::is_directory(tokenizer)) return;
  std::filesystem::create_directories(run_folder / "tokenizer");
  tokens::copy_tokenizer(tokenizer, run_folder / "tokenizer");
}

}  // namespace trestle::train
