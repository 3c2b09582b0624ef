#include "trestle/train/language/model_files.h"

#include "trestle/base/files.h"
#include "trestle/models/transformer/read_config.h"
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

}  // namespace trestle::train
