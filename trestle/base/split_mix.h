#pragma once

#include <cstdint>

namespace trestle {

// SplitMix64 (Steele, Lea, Flood 2014): the increment of its state, and the output for a state.
// Each of the 2^64 states gives a different output, so it is a hash too.
inline constexpr std::uint64_t split_mix_step = 0x9e3779b97f4a7c15ULL;

constexpr std::uint64_t split_mix(std::uint64_t state) {
  std::uint64_t z = state + split_mix_step;
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
  return z ^ (z >> 31);
}

}  // namespace trestle
