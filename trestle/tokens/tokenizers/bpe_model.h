#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "trestle/tokens/tokenizers/bpe_parts.h"
#include "trestle/tokens/tokenizers/merge_table.h"
#include "trestle/tokens/tokenizers/word_cache.h"

namespace trestle::tokens {

// Byte-pair encoding of one word: its bytes are the first tokens, and of all neighbours that have a
// merge the pair with the lowest rank merges, the leftmost of equal ones. Sennrich et al. 2016
// (https://arxiv.org/abs/1508.07909), on bytes as in GPT-2.
class BpeModel {
 public:
  // The memory that a thread needs while it encodes.
  struct Scratch {
    struct Symbol {
      Id id;
      std::int32_t previous;
      std::int32_t next;
    };
    struct Candidate {
      std::uint64_t order;  // rank, then position
      Id left;
      Id right;
      Id result;
    };
    std::vector<Symbol> symbols;
    std::vector<Candidate> heap;
    std::vector<Id> ids;
    WordCache cache;
  };

  explicit BpeModel(const BpeParts& parts);
  BpeModel(const BpeModel&) = delete;
  BpeModel& operator=(const BpeModel&) = delete;

  // Appends the ids of a word. A byte that has no token becomes the unknown token, or nothing if
  // there is none, as Hugging Face's tokenizers do.
  void encode(std::string_view word, Scratch* scratch, std::vector<Id>* out) const;

 private:
  void merge(std::string_view word, Scratch* scratch) const;
  void first_symbols(std::string_view word, Scratch* scratch) const;
  void push(std::int32_t at, Scratch* scratch) const;

  MergeTable merges_;
  std::array<Id, 256> bytes_;
  Id unknown_ = -1;
  bool fuse_unknown_ = false;
  std::unordered_map<std::string_view, Id>
      whole_words_;  // filled if words that are tokens do not merge
  std::string whole_word_bytes_;
};

}  // namespace trestle::tokens
