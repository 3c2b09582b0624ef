#pragma once

#include <cstddef>
#include <span>
#include <string_view>

// Characters of valid UTF-8.
namespace trestle::tokens {

struct CodePoint {
  char32_t code = 0;
  std::size_t length = 0;  // in bytes
};

// The character that begins at byte `at`, which is less than the text's size.
CodePoint code_point_at(std::string_view text, std::size_t at);

// The character that ends before byte `end`, which is more than 0.
CodePoint code_point_before(std::string_view text, std::size_t end);

// Unicode's White_Space: 25 characters.
bool is_white_space(char32_t code);

// Both ends belong to it.
struct CodeRange {
  char32_t first = 0;
  char32_t last = 0;
};

// Whether one of the ranges, which are sorted and disjoint, has the character.
bool is_in(std::span<const CodeRange> ranges, char32_t code);

// A letter, mark, decimal digit or joiner: \w of Unicode's regular expressions (UTS 18, annex C).
bool is_word_character(char32_t code);

}  // namespace trestle::tokens
