#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/tokens/tokenizer.h"

namespace trestle::tokens {

// The ids of the words that a thread has met. A text repeats its words, so most of them are found
// here. When the cache is full, it starts again from empty.
class WordCache {
 public:
  static constexpr std::size_t longest_word = 64;  // in bytes

  // The ids of a word, valid until the next insert().
  std::optional<std::span<const Id>> find(std::string_view word) const;

  // Words over `longest_word` are not kept.
  void insert(std::string_view word, std::span<const Id> ids);

 private:
  struct Slot {
    std::uint64_t hash = 0;
    std::uint32_t word = 0;  // begin in bytes_
    std::uint32_t ids = 0;   // begin in ids_
    std::uint8_t length = 0;
    std::uint8_t count = 0;
    bool used = false;
  };
  void grow();
  void clear();

  std::vector<Slot> slots_ = std::vector<Slot>(1024);
  std::size_t used_ = 0;
  std::string bytes_;
  std::vector<Id> ids_;
};

}  // namespace trestle::tokens
