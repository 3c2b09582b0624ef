#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "trestle/base/fnv1a.h"

namespace trestle::tokens {

// FNV-1a of a sequence of texts and numbers. Each text is hashed with its length, so that "a", "b"
// differs from "ab".
class ContentHash {
 public:
  void add(std::string_view text) {
    add(static_cast<std::int64_t>(text.size()));
    hash_ = fnv1a(text, hash_);
  }

  void add(std::int64_t number) {
    std::string bytes;
    for (int shift = 0; shift < 64; shift += 8) {
      bytes += static_cast<char>(static_cast<std::uint64_t>(number) >> shift & 0xFF);
    }
    hash_ = fnv1a(bytes, hash_);
  }

  // 16 hexadecimal digits.
  std::string digits() const {
    constexpr std::string_view digit_characters = "0123456789abcdef";
    std::string out;
    for (int shift = 60; shift >= 0; shift -= 4) out += digit_characters[hash_ >> shift & 0xF];
    return out;
  }

 private:
  std::uint64_t hash_ = fnv1a_offset_basis;
};

}  // namespace trestle::tokens
