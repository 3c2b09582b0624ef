#pragma once

#include <cstdint>
#include <string_view>

namespace trestle {

inline constexpr std::uint64_t fnv1a_offset_basis = 0xcbf29ce484222325ULL;

// FNV-1a with 64 bits (Fowler, Noll, Vo): the same number for the same bytes on every machine. It
// is no cryptographic hash. To hash several texts in a row, pass the hash of the previous ones.
constexpr std::uint64_t fnv1a(std::string_view bytes, std::uint64_t hash = fnv1a_offset_basis) {
  for (const char byte : bytes) {
    hash ^= static_cast<unsigned char>(byte);
    hash *= 0x100000001b3ULL;
  }
  return hash;
}

}  // namespace trestle
