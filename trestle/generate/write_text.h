#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/generate/generate.h"
#include "trestle/tokens/tokenizer.h"

// Continues text in words.
//
//   auto ids = trestle::generate::prompt_ids(*tokenizer, "The capital of France is");
//   auto made = trestle::generate::write_text(model, *tokenizer, ids, {.generate = {}});
//   std::cout << made.text << "\n";
namespace trestle::generate {

struct WriteOptions {
  GenerateOptions generate = {};
  // The text ends before the first of these.
  std::vector<std::string> stop_words = {};
  // Called with whole UTF-8 text as it is complete; false ends the text. Text that may be the begin
  // of a stop word is held back. `text` is the prompt's place in the batch, 0 for write_text().
  std::function<bool(std::size_t text, std::string_view words)> on_text = {};
};

struct Written {
  std::string text;
  Generated generated;  // with a stop word, its tokens are the last ones
};

// The ids of a prompt: the tokenizer's prefix (BOS), where it has one, and the text, in which the
// spelling of special tokens is text unless `specials` recognises it.
std::vector<std::int64_t> prompt_ids(const tokens::Tokenizer& tokenizer, std::string_view text,
                                     tokens::Specials specials = tokens::Specials::AsText);

// As generate(), with the new tokens as text.
Written write_text(const LanguageModel& model, const tokens::Tokenizer& tokenizer,
                   const std::vector<std::int64_t>& prompt, const WriteOptions& options);

// As generate_batch(), with the new tokens as text. `on_end`, if any, is called once for each
// prompt, as soon as it ends.
std::vector<Written> write_batch(
    const LanguageModel& model, const tokens::Tokenizer& tokenizer,
    const std::vector<Prompt>& prompts, const WriteOptions& options,
    const std::function<void(std::size_t text, const Written&)>& on_end = {});

}  // namespace trestle::generate
