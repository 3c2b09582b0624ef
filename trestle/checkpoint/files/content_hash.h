#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>

#include "trestle/base/split_mix.h"

// Internal to trestle/checkpoint.
namespace trestle::checkpoint {

// 16 hexadecimal digits that identify a content: they detect damaged files and files of another
// save, but not deliberate collisions. About as fast as memory.
//
// h = 0x9e3779b97f4a7c15 = c; for every 8 bytes, little endian, the last ones padded with zeros: p
// = (h xor word) * c, in 128 bits, and h = (p mod 2^64) xor (p / 2^64). At the end split_mix(h xor
// length).
inline std::string content_hash(std::string_view bytes) {
  std::uint64_t hash = split_mix_step;
  const auto take = [&hash](const char* from, std::size_t count) {
    std::uint64_t word = 0;
    std::memcpy(&word, from, count);
    const auto product = static_cast<unsigned __int128>(hash ^ word) * split_mix_step;
    hash = static_cast<std::uint64_t>(product) ^ static_cast<std::uint64_t>(product >> 64);
  };
  const std::size_t words = bytes.size() / 8;
  for (std::size_t i = 0; i < words; ++i) take(bytes.data() + 8 * i, 8);
  if (bytes.size() % 8 != 0) take(bytes.data() + 8 * words, bytes.size() % 8);
  hash = split_mix(hash ^ bytes.size());
  constexpr std::string_view digits = "0123456789abcdef";
  std::string out(16, '0');
  for (std::size_t i = out.size(); i > 0; --i, hash >>= 4) out[i - 1] = digits[hash & 15];
  return out;
}

}  // namespace trestle::checkpoint
