#include "trestle/tokens/tokenizers/valid_utf8.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

namespace trestle::tokens {
namespace {

// The bytes at a place of a text: a whole character, or the longest begin of one.
struct Sequence {
  std::size_t length = 1;  // bytes that were accepted, at least one
  std::size_t wanted = 1;  // bytes that the first one announces; 0 for a byte that begins nothing
  bool whole() const { return length == wanted; }
};

// The Unicode Standard, table 3-7: only the range of the second byte depends on the first.
Sequence sequence_at(std::string_view text, std::size_t at) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(at);
  if (first < 0x80) return {1, 1};
  if (first < 0xC2 || first > 0xF4) return {1, 0};
  const std::size_t wanted = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
  unsigned char low = 0x80;
  unsigned char high = 0xBF;
  if (first == 0xE0) low = 0xA0;
  if (first == 0xED) high = 0x9F;
  if (first == 0xF0) low = 0x90;
  if (first == 0xF4) high = 0x8F;
  std::size_t length = 1;
  while (length < wanted && at + length < text.size()) {
    if (byte(at + length) < low || byte(at + length) > high) break;
    low = 0x80;
    high = 0xBF;
    ++length;
  }
  return {length, wanted};
}

// The first place from `at` on that holds no whole character.
std::size_t first_invalid(std::string_view text, std::size_t at) {
  constexpr std::uint64_t high_bits = 0x8080808080808080ULL;
  while (at < text.size()) {
    std::uint64_t block = 0;
    if (at + sizeof(block) <= text.size()) {
      std::memcpy(&block, text.data() + at, sizeof(block));
      if ((block & high_bits) == 0) {
        at += sizeof(block);
        continue;
      }
    }
    const Sequence sequence = sequence_at(text, at);
    if (!sequence.whole()) return at;
    at += sequence.length;
  }
  return text.size();
}

}  // namespace

std::string_view valid_utf8(std::string_view text, std::string* storage) {
  constexpr std::string_view replacement = "\xEF\xBF\xBD";
  std::size_t begin = 0;
  std::size_t end = first_invalid(text, 0);
  if (end == text.size()) return text;
  storage->clear();
  while (end < text.size()) {
    storage->append(text.substr(begin, end - begin));
    storage->append(replacement);
    begin = end + sequence_at(text, end).length;
    end = first_invalid(text, begin);
  }
  storage->append(text.substr(begin));
  return *storage;
}

std::size_t unfinished_utf8(std::string_view text) {
  for (std::size_t back = 1; back <= std::min<std::size_t>(3, text.size()); ++back) {
    const Sequence sequence = sequence_at(text, text.size() - back);
    if (sequence.wanted > sequence.length && sequence.length == back) return back;
    if (sequence.wanted >= 1) return 0;
  }
  return 0;
}

}  // namespace trestle::tokens
