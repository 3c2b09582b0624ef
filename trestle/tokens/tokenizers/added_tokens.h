#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/tokens/tokenizer.h"
#include "trestle/tokens/tokenizers/bpe_parts.h"

namespace trestle::tokens {

// Finds added tokens in texts: the leftmost, and of those the longest. The rules for white space
// and words around them are those of Hugging Face's tokenizers.
class AddedTokens {
 public:
  // A part of a text: a token, or text between tokens if `id` is -1.
  struct Part {
    Id id = -1;
    std::string_view text;
  };

  // `spellings[i]` is the text to find for `tokens[i]`.
  AddedTokens(std::vector<AddedToken> tokens, const std::vector<std::string>& spellings);

  // Appends the parts of a text, in order.
  void split(std::string_view text, Specials specials, std::vector<Part>* out) const;

 private:
  // A trie of the spellings, byte by byte.
  struct Node {
    std::map<unsigned char, std::size_t> next;
    std::ptrdiff_t token = -1;
  };
  struct Match {
    std::ptrdiff_t token = -1;
    std::size_t end = 0;
  };
  Match longest_at(std::string_view text, std::size_t at) const;

  std::vector<AddedToken> tokens_;
  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::vector<bool> may_begin_ = std::vector<bool>(256);
};

}  // namespace trestle::tokens
