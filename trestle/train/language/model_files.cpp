#include "trestle/train/language/model_files.h"

#include "trestle/base/files.h"
#include "trestle/models/transformer/read_config.h"
#include "trestle/tokens/files/token_set.h"
#include "trestle/tokens/open_tokenizer.h"
#include "trestle/tokens/saved_tokenizer.h"
#include "trestle/train/language/transformer_recipe.h"

namespace trestle::train {

void write_model_files(const recipe::Recipe& recipe, const std::filesystem::path& run_folder) {
  if (!is_transformer(recipe)) return;
  write_file(run_folder / "config.json", models::to_config_json(transformer_config(recipe)));
  const std::filesystem::path tokenizer = std::filesystem::path(recipe.data.tokens) / "tokenizer";
  if (recipe.data.tokens.empty() || !std::filesystem::is_directory(tokenizer)) return;
  std::filesystem::create_directories(run_folder / "tokenizer");
  tokens::copy_tokenizer(tokenizer, run_folder / "tokenizer");
}

void check_tokens_of_run(const recipe::Recipe& recipe, const std::filesystem::path& weights) {
  if (recipe.data.name != "tokens") return;
  std::filesystem::path folder = std::filesystem::absolute(weights);
  constexpr int most_levels = 3;  // RUN/last, RUN/checkpoints/step_10
  for (int level = 0; level < most_levels; ++level) {
    folder = folder.parent_path();
    if (!std::filesystem::is_directory(folder / "tokenizer")) continue;
    const auto own = tokens::open_saved_tokenizer(folder / "tokenizer");
    return tokens::check_tokenizer(tokens::TokenSet(recipe.data.tokens), own->hash(),
                                   recipe.data.tokens);
  }
}

}  // namespace trestle::train
