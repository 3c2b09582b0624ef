#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace trestle::tokens {

// The spelling of bytes in GPT-2's vocabulary files: each byte is one printable character, so that
// a token is a string of JSON and a line of merges.txt. Printable bytes are themselves; the 68
// remaining ones are U+0100 and up, in order. A space is U+0120.
class ByteAlphabet {
 public:
  ByteAlphabet();

  // The bytes that a token's spelling stands for, or nothing if a character is not in the alphabet.
  std::optional<std::string> bytes(std::string_view spelling) const;

  // The spelling of some bytes.
  std::string spell(std::string_view bytes) const;

  const std::string& spelling(unsigned char byte) const { return spellings_[byte]; }

 private:
  std::array<std::string, 256> spellings_;
  std::array<std::int16_t, 512> bytes_;  // of a code point; -1 for none
};

}  // namespace trestle::tokens
