#pragma once

#include <cstdint>

// Randomness that a plan cannot change.
namespace trestle {

// The seed for one layer's random numbers in one micro-batch of one step. It never depends on
// stage, rank, thread or time, so every split, schedule and recomputation draws the same numbers,
// and a resume needs no generator state. Mixed with SplitMix64 (Steele, Lea, Flood 2014). Use layer
// = -1 for what belongs to no layer.
constexpr std::uint64_t keyed_seed(std::uint64_t seed, std::int64_t step, std::int64_t layer,
                                   std::int64_t micro_batch) {
  auto mix = [](std::uint64_t z) {
    z += 0x9e3779b97f4a7c15ULL;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ULL;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebULL;
    return z ^ (z >> 31);
  };
  std::uint64_t key = mix(seed);
  key = mix(key ^ static_cast<std::uint64_t>(step));
  key = mix(key ^ static_cast<std::uint64_t>(layer));
  return mix(key ^ static_cast<std::uint64_t>(micro_batch));
}

}  // namespace trestle
