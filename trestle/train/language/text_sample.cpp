#include "trestle/train/language/text_sample.h"

#include <algorithm>
#include <filesystem>

#include "trestle/generate/choose_token.h"
#include "trestle/models/transformer/config.h"
#include "trestle/tokens/files/token_set.h"
#include "trestle/tokens/saved_tokenizer.h"
#include "trestle/tokens/stream_decoder.h"
#include "trestle/train/language/transformer_recipe.h"

namespace trestle::train {

namespace fs = std::filesystem;

TextSample::TextSample(const recipe::Recipe& recipe) {
  const fs::path folder = recipe.data.tokens;
  if (!is_transformer(recipe) || recipe.data.name != "tokens" || recipe.train.sample_tokens < 1)
    return;
  if (!fs::is_directory(folder / "tokenizer")) return;
  const models::TransformerConfig config = transformer_config(recipe);
  if (config.context < 2) return;  // a prompt would fill it
  tokenizer_ = tokens::open_saved_tokenizer(folder / "tokenizer");
  const bool validates = fs::exists(folder / "validation_000000.bin");
  const tokens::TokenSet text(folder, validates ? "validation" : "train");
  constexpr std::int64_t most = 16;
  task_.prompt.resize(static_cast<std::size_t>(
      std::min({most, text.count(), std::max<std::int64_t>(config.context / 4, 1)})));
  text.read(0, task_.prompt, config.vocabulary);
  task_.tokens = std::min(recipe.train.sample_tokens, config.context - std::ssize(task_.prompt));
  task_.allowed = std::min<std::int64_t>(tokenizer_->size(), config.vocabulary);
}

std::string TextSample::text_of(const std::vector<std::int64_t>& ids) const {
  tokens::StreamDecoder decoder(*tokenizer_, tokens::StreamDecoder::SpecialTokens::Write);
  std::string text;
  for (const std::int64_t id : ids)
    if (id < tokenizer_->size()) text += decoder.add(static_cast<tokens::Id>(id));
  return text + decoder.finish();
}

std::int64_t choose_sample_token(const at::Tensor& scores, const std::vector<std::int64_t>& so_far,
                                 std::int64_t allowed, std::uint64_t seed) {
  return generate::choose_token(scores, so_far, 0, allowed, {.temperature = 0.8, .seed = seed});
}

}  // namespace trestle::train
