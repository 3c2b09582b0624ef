#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trestle/tokens/tokenizers/bpe_parts.h"
#include "trestle/tokens/tokenizers/byte_alphabet.h"

// Not installed.
namespace trestle::tokens {

// Collects the tokens and merges that a file spells in the alphabet of bytes.
class Vocabulary {
 public:
  explicit Vocabulary(std::string file) : file_(std::move(file)) {}

  // `most` is the number of tokens that the file has. Throws FormatError for an id that is
  // negative or far above it, and for an id or a spelling that was added before.
  void reserve(std::size_t most) { most_ = most; }
  void add_word(std::string_view spelling, std::int64_t id);

  // Only the id and the bytes: merges do not make it.
  void add_other(std::string_view bytes, std::int64_t id);

  // The id of a spelling, or -1.
  Id find(std::string_view spelling) const;

  // Throws FormatError for tokens that are not in the vocabulary.
  void add_merge(std::string_view left, std::string_view right);

  // "Ġ t", the form of merges.txt.
  void add_merge_line(std::string_view line);

  // Moves what was collected into the parts.
  void finish(BpeParts* parts);

 private:
  BpeToken& slot(std::int64_t id, std::string_view spelling);

  std::string file_;
  std::size_t most_ = 0;
  ByteAlphabet alphabet_;
  // Looks spellings up without copying them.
  struct SpellingHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view spelling) const {
      return std::hash<std::string_view>()(spelling);
    }
  };
  std::unordered_map<std::string, Id, SpellingHash, std::equal_to<>> ids_;
  std::vector<BpeToken> tokens_;
  std::vector<Merge> merges_;
};

}  // namespace trestle::tokens
