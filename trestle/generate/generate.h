#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "trestle/generate/choose_token.h"
#include "trestle/generate/language_model.h"

// Continues a text token by token.
//
//   auto result = trestle::generate::generate(model, prompt, {.most_tokens = 16});
//   for (std::int64_t id : result.ids) std::cout << id << " ";
namespace trestle::generate {

// Why a text ended.
enum class Ended {
  EndToken,  // one of the end tokens was chosen; it is not part of the text
  StopWord,  // a stop word was written; it is not part of the text
  Length,    // most_tokens
  Context,   // the model's context is full
  Stopped,   // the caller stopped it
};
// "end token", "stop word", "length", "context" or "stopped".
std::string to_word(Ended ended);

struct GenerateOptions {
  ChoiceOptions choice = {};
  std::int64_t most_tokens = 128;
  std::vector<std::int64_t> end_tokens = {};
  // Ids from this on are padded rows of the vocabulary, which are never chosen; 0 = none.
  std::int64_t tokens = 0;
  std::int64_t text_number = 0;  // of the prompt in a batch; part of the random key
  // Called with each new token; false ends the text.
  std::function<bool(std::int64_t)> on_token = {};
};

struct Generated {
  std::vector<std::int64_t> ids;  // the new tokens
  Ended ended = Ended::Length;
  double prompt_seconds = 0;  // to the first token
  double answer_seconds = 0;  // all tokens after the first
};

// Continues `prompt`, at least one id. The result depends on the weights, the prompt and the
// options alone: not on other prompts, devices or stages, to rounding. Throws UsageError for an
// empty prompt, one that fills the context, an id out of range, and options out of range.
Generated generate(const LanguageModel& model, const std::vector<std::int64_t>& prompt,
                   const GenerateOptions& options);

}  // namespace trestle::generate
