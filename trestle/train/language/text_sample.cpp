#include "trestle/train/language/text_sample.h"

#include <algorithm>
#include <vector>

#include "trestle/generate/generate.h"
#include "trestle/tokens/files/token_set.h"
#include "trestle/tokens/saved_tokenizer.h"
#include "trestle/tokens/stream_decoder.h"
#include "trestle/train/language/transformer_recipe.h"

namespace trestle::train {

namespace fs = std::filesystem;

TextSample::TextSample(const recipe::Recipe& recipe, const nn::Layers& model) : model_(model) {
  const fs::path folder = recipe.data.tokens;
  if (!is_transformer(recipe) || recipe.data.name != "tokens") return;
  if (!fs::is_directory(folder / "tokenizer")) return;
  config_ = transformer_config(recipe);
  if (config_.context < 2) return;  // a prompt would fill it
  seed_ = static_cast<std::uint64_t>(recipe.train.seed);
  tokenizer_ = tokens::open_saved_tokenizer(folder / "tokenizer");
  const bool validates = fs::exists(folder / "validation_000000.bin");
  const tokens::TokenSet text(folder, validates ? "validation" : "train");
  constexpr std::int64_t most = 16;
  prompt_.resize(static_cast<std::size_t>(
      std::min({most, text.count(), std::max<std::int64_t>(config_.context / 4, 1)})));
  text.read(0, prompt_, config_.vocabulary);
}

std::string TextSample::write(std::int64_t tokens) const {
  const generate::LanguageModel writer(model_, config_);
  const generate::Generated made = generate::generate(
      writer, prompt_,
      {.choice = {.temperature = 0.8, .seed = seed_},
       .most_tokens = std::min(tokens, config_.context - std::ssize(prompt_)),
       .tokens = std::min<std::int64_t>(tokenizer_->size(), config_.vocabulary)});
  tokens::StreamDecoder decoder(*tokenizer_, tokens::StreamDecoder::SpecialTokens::Write);
  std::string text;
  for (const auto& ids : {prompt_, made.ids})
    for (const std::int64_t id : ids)
      if (id < tokenizer_->size()) text += decoder.add(static_cast<tokens::Id>(id));
  return text + decoder.finish();
}

}  // namespace trestle::train
