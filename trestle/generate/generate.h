#pragma once

#include <cstdint>
#include <functional>
#include <limits>
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
  // Called after each token of all texts; true ends them, with Ended::Stopped.
  std::function<bool()> stop = {};
  // Called on tensor rank 0 before it chooses tokens, until it returns true: other ranks wait
  // meanwhile, longer than their deadline if need be. So the reader of the texts may be slow. Each
  // call may take a part of the deadline. One rank alone does not call it.
  std::function<bool()> ready = {};
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
  // The smallest gap of a choice (ChosenToken::gap in choose_token.h), and the number of the token
  // that was chosen there, from 0: that of ids.size() is an end token. Infinite and -1 if no token
  // was chosen.
  double smallest_gap = std::numeric_limits<double>::infinity();
  std::int64_t smallest_gap_at = -1;
};

// Continues `prompt`, at least one id. The result depends on the weights, the prompt and the
// options alone: not on other prompts, devices, stages or ranks, to rounding. Rounding changes a
// text where Generated::smallest_gap is small. Throws UsageError for an empty prompt, one that
// fills the context, an id out of range, and options out of range.
//
// All tensor ranks of a split model call it, with the same prompts; a difference throws UsageError
// on all of them. Rank 0 chooses the tokens, and decides when a text ends: the options of the other
// ranks have no effect but for `most_tokens` and `slide`, which must be the same, and `stop`, which
// ends the texts on all ranks if it returns true on any. All ranks get the same result but for the
// times, and on_token is called on all of them. A rank that fails ends the call on all ranks
// (RankError).
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
