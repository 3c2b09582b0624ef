#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <queue>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "trestle/tokens/tokenizer.h"

namespace trestle::tokens {

// Finds the pair of neighbours that occurs most often in counted words, again and again.
class BpeTrainer {
 public:
  struct Pair {
    Id left = 0;
    Id right = 0;
    std::int64_t count = 0;
  };

  // `byte_ids` has the id of each byte.
  BpeTrainer(const std::vector<std::pair<std::string, std::int64_t>>& words,
             const std::array<Id, 256>& byte_ids);

  // The pair that merges next (train_bpe.h has the rule for ties); nothing without any pair.
  std::optional<Pair> most_frequent();

  // Replaces the pair by `result` in all words.
  void merge(const Pair& pair, Id result);

 private:
  struct Word {
    std::vector<Id> ids;
    std::int64_t count = 0;
  };
  struct Places {
    std::int64_t count = 0;
    std::vector<std::uint32_t> words;  // may name a word twice, or one without the pair
  };
  // The queue's top has the most; of equal ones it has the lowest ids.
  struct Later {
    bool operator()(const Pair& a, const Pair& b) const {
      if (a.count != b.count) return a.count < b.count;
      return std::pair(a.left, a.right) > std::pair(b.left, b.right);
    }
  };
  static std::uint64_t key(Id left, Id right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 |
           static_cast<std::uint32_t>(right);
  }
  void count_pair(Id left, Id right, std::int64_t count, std::uint32_t word);
  void merge_in_word(const Pair& pair, Id result, std::uint32_t word);

  std::vector<Word> words_;
  std::unordered_map<std::uint64_t, Places> pairs_;
  std::priority_queue<Pair, std::vector<Pair>, Later> queue_;
  std::vector<std::uint64_t> grown_;  // pairs that the running merge made
};

}  // namespace trestle::tokens
