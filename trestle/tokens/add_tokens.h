#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "trestle/tokens/tokenizer.h"

// More tokens for a tokenizer that exists, such as "<|tool|>" for a model that learns to call
// tools.
//
//   auto tokenizer = trestle::tokens::open_tokenizer("smollm/tokenizer.json");
//   auto larger = trestle::tokens::add_tokens(*tokenizer, {{.spelling = "<|tool|>"}});
//   larger->encode("Call <|tool|> now");   // one id, tokenizer->size(), for the whole spelling
namespace trestle::tokens {

struct NewToken {
  std::string spelling;
  // A control token: the spelling in a text is ordinary characters, and only a chat template writes
  // the token. Otherwise encode() finds it in every text, as Hugging Face's add_tokens().
  bool special = false;
};

// The tokenizer with these tokens behind its own: the ids from tokenizer.size() on. Text without
// their spellings has the ids that it had. Throws UsageError for a tokenizer that is not byte-level
// BPE, for no tokens, and for a spelling that is empty, is not UTF-8, occurs twice, or is a token
// already, with its id.
std::unique_ptr<Tokenizer> add_tokens(const Tokenizer& tokenizer,
                                      const std::vector<NewToken>& added);

// The number of tokens that `larger` has behind those of `tokenizer`; 0 unless everything else of
// the two is equal, so that both give the same meaning to each id of `tokenizer`.
std::int64_t added_tokens(const Tokenizer& larger, const Tokenizer& tokenizer);

// Writes the tokenizer.json of a tokenizer that add_tokens() made into a folder, in place of the
// files of vocabulary and merges that may be there. Throws FileError; StateError if the file would
// be another tokenizer.
void save_added_tokens(const Tokenizer& tokenizer, const std::filesystem::path& folder);

}  // namespace trestle::tokens
