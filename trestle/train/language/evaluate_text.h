#pragma once

#include <cstdint>
#include <functional>
#include <string_view>

#include "trestle/generate/language_model.h"
#include "trestle/tokens/tokenizer.h"

// How well a language model predicts a text.
//
//   const auto score = trestle::train::evaluate_text(model, *tokenizer, words, {.window = 512});
//   std::cout << score.perplexity() << "\n";
namespace trestle::train {

struct TextEvaluateOptions {
  std::int64_t window = 0;  // the most tokens that a token is predicted from; 0 = the context
  std::int64_t stride = 0;  // from one window to the next; 0 = half of the window
  // Called with (tokens scored, all).
  std::function<void(std::int64_t, std::int64_t)> progress = {};
};

struct TextScore {
  std::int64_t tokens = 0;   // that were scored
  std::int64_t bytes = 0;    // of their text
  std::int64_t windows = 0;  // of that number
  std::int64_t window = 0, stride = 0;
  double log_probability = 0;  // the sum over the tokens, in nats
  double loss() const;         // the mean of a token: -log_probability / tokens
  double perplexity() const;   // exp(loss)
  // -log_probability / (bytes ln 2): comparable between models with different tokenizers.
  double bits_per_byte() const;
};

// Scores each token of a text, behind the tokenizer's prefix (BOS), once; the first one has
// nothing before it, so it is scored only where there is a prefix. Window k predicts from the
// tokens k stride to k stride + window - 1, and scores the tokens that no window before it has
// scored. A token is so predicted from window - stride + 1 to `window` tokens, except near the
// text's begin. stride = window is the fastest, a small stride gives the lowest perplexity.
//
// Throws UsageError for a window above the context or below 1, a stride above the window or below
// 1, and a text without two tokens.
TextScore evaluate_text(const generate::LanguageModel& model, const tokens::Tokenizer& tokenizer,
                        std::string_view words, const TextEvaluateOptions& options = {});

}  // namespace trestle::train
