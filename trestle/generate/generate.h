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
  // Continues behind the end of the context: the model then sees the last half of a context, until
  // it is full again. Otherwise the text ends there (Ended::Context).
  bool slide = false;
  // Ids from this on are padded rows of the vocabulary, which are never chosen; 0 = none.
  std::int64_t tokens = 0;
  std::int64_t text_number = 0;  // part of the random key; generate_batch() uses each prompt's own
  // Called with each new token of prompt `text` of the batch (0 for generate()); false ends it.
  std::function<bool(std::size_t text, std::int64_t id)> on_token = {};
};

// A prompt of a batch.
struct Prompt {
  std::vector<std::int64_t> ids;
  std::int64_t text_number = 0;  // part of the random key
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

// Continues several prompts at once, padded on the left to the longest of those that have not ended
// yet. Each result equals that of generate() for the prompt alone with its text_number, up to the
// rounding of the scores. `on_end`, if any, is called once for each prompt, as soon as it ends.
//
//   auto results = trestle::generate::generate_batch(model, {{.ids = {5, 17}}, {.ids = {3}}}, {});
std::vector<Generated> generate_batch(
    const LanguageModel& model, const std::vector<Prompt>& prompts, const GenerateOptions& options,
    const std::function<void(std::size_t text, const Generated&)>& on_end = {});

// Throws the errors that generate_batch() throws for these prompts, with the number of the prompt.
void check_prompts(const models::TransformerConfig& config, const std::vector<Prompt>& prompts);

}  // namespace trestle::generate
