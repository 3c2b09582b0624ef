#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

// Text as numbers. A tokenizer divides text into tokens and gives each token an id.
//
//   auto tokenizer = trestle::tokens::open_tokenizer("smollm/tokenizer.json");
//   std::vector<trestle::tokens::Id> ids = tokenizer->encode("The capital of France is");
//   std::string text = tokenizer->decode(ids);
namespace trestle::tokens {

using Id = std::int32_t;

// How encode() treats the spelling of a special token, such as "<|endoftext|>", inside a text.
enum class Specials {
  AsText,      // as any other characters: for text that a user or a data set wrote
  Recognised,  // as the token: for text that a chat template wrote
};

class Tokenizer {
 public:
  Tokenizer() = default;
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // The ids of a text in UTF-8, without a token at its begin or end. Invalid bytes first become
  // U+FFFD, as Python's errors="replace" makes them. May be called by several threads at once.
  virtual std::vector<Id> encode(std::string_view text,
                                 Specials specials = Specials::AsText) const = 0;

  // The bytes of one token. They need not be whole UTF-8 characters. Throws UsageError, with the
  // range, for an id that is out of range.
  virtual std::string_view bytes(Id id) const = 0;

  // Ids are 0 to size() - 1. Some of them may have no token; their bytes are empty.
  virtual Id size() const = 0;

  // Whether the id is a special token: control tokens that a text does not contain.
  virtual bool is_special(Id id) const = 0;

  // The ids that stand before and after each text where the tokenizer says so (BOS, EOS). Most have
  // none.
  virtual std::vector<Id> prefix() const { return {}; }
  virtual std::vector<Id> suffix() const { return {}; }

  // The id of a token with this spelling, or -1.
  virtual Id find(std::string_view spelling) const = 0;

  // Identifies the tokenizer: 16 hexadecimal digits that depend on every token and rule, not on the
  // file format. A token file stores it.
  virtual std::string hash() const = 0;

  // The concatenated bytes of tokens. Virtual, because some tokenizers decode the first token of a
  // text differently.
  virtual std::string decode(std::span<const Id> ids) const;
};

}  // namespace trestle::tokens
