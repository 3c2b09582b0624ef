#pragma once

#include <string>
#include <vector>

#include "trestle/tokens/tokenizer.h"

namespace trestle::tokens {

// Decodes tokens one by one, as a model makes them. A character may consist of several tokens, so
// the text of a token may come with a later one; every result is whole UTF-8. All results in a row
// are the decoded text, with U+FFFD for bytes that never complete a character.
//
//   trestle::tokens::StreamDecoder decoder(*tokenizer);
//   for (const trestle::tokens::Id id : ids) std::cout << decoder.add(id) << std::flush;
//   std::cout << decoder.finish();
class StreamDecoder {
 public:
  enum class SpecialTokens {
    Skip,   // they give no text
    Write,  // they give their bytes, as Tokenizer::decode() does
  };

  // The tokenizer must outlive the decoder.
  explicit StreamDecoder(const Tokenizer& tokenizer,
                         SpecialTokens special_tokens = SpecialTokens::Skip)
      : tokenizer_(tokenizer), special_tokens_(special_tokens) {}

  // The text that is complete with this token; often empty. Throws UsageError for an id that is
  // out of range.
  std::string add(Id id);

  // The text of what is left, and the decoder is as new.
  std::string finish();

 private:
  void add_first(Id id);

  const Tokenizer& tokenizer_;
  SpecialTokens special_tokens_;
  std::string pending_;    // bytes without their text
  std::vector<Id> first_;  // tokens of the begin, as long as they give no text
  bool at_begin_ = true;
};

}  // namespace trestle::tokens
