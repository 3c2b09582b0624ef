#include "trestle/train/language/new_tokens.h"

#include <filesystem>

#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/tokens/add_tokens.h"
#include "trestle/tokens/saved_tokenizer.h"
#include "trestle/train/language/text_model.h"

namespace trestle::train {

void check_text_of_weights(const recipe::Recipe& recipe, const tokens::TokenSet& set) {
  if (recipe.model.weights.empty()) return;
  const auto own = tokenizer_of_weights(recipe.model.weights);
  if (!own) return;
  const std::string& folder = recipe.data.tokens;
  const std::filesystem::path saved = std::filesystem::path(folder) / "tokenizer";
  std::int64_t added = 0;
  if (set.tokenizer() != own->hash() && std::filesystem::is_directory(saved))
    added = tokens::added_tokens(*tokens::open_saved_tokenizer(saved), *own);
  if (added == 0) return tokens::check_tokenizer(set, own->hash(), folder);
  if (recipe.adapters.rank > 0) refuse_frozen_new_tokens(added, folder);
}

void refuse_frozen_new_tokens(std::int64_t count, const std::string& file) {
  throw UsageError(
      text(counted(count, "new token"), plural(count, " has", " have"), " rows in the embedding ",
           "and the head that would never be learned: adapters freeze both tables"),
      {.file = file,
       .hint =
           "Train all weights (adapter_rank = 0 in [adapters]), or prepare the text without the "
           "new tokens. In PEFT, modules_to_save or trainable_token_indices would train their "
           "rows; trestle's adapters have neither."});
}

}  // namespace trestle::train
