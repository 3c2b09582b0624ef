#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "trestle/tokens/tokenizer.h"

namespace trestle::tokens {

// Two neighbouring tokens become one.
struct Merge {
  Id left = 0;
  Id right = 0;
  Id result = 0;
};

// The merges of a tokenizer by their pair. Open addressing: a lookup is most of an encoder's time.
class MergeTable {
 public:
  struct Entry {
    std::uint64_t pair = 0;
    std::uint32_t rank = 0;  // the position in the list: lower ranks merge first
    Id result = -1;          // -1: the slot is empty
  };

  // If a pair occurs twice, the later merge holds.
  explicit MergeTable(const std::vector<Merge>& merges);

  const Entry* find(Id left, Id right) const {
    const std::uint64_t pair = key(left, right);
    for (std::size_t at = slot(pair);; at = (at + 1) & mask_) {
      const Entry& entry = entries_[at];
      if (entry.result < 0) return nullptr;
      if (entry.pair == pair) return &entry;
    }
  }

 private:
  static std::uint64_t key(Id left, Id right) {
    return std::uint64_t{static_cast<std::uint32_t>(left)} << 32 |
           static_cast<std::uint32_t>(right);
  }
  std::size_t slot(std::uint64_t pair) const {
    return static_cast<std::size_t>((pair * 0x9E3779B97F4A7C15ULL) >> 32) & mask_;
  }

  std::vector<Entry> entries_;
  std::size_t mask_ = 0;
};

}  // namespace trestle::tokens
