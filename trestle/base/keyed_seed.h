#pragma once

#include <cstdint>
#include <string_view>

#include "trestle/base/fnv1a.h"
#include "trestle/base/split_mix.h"

// Randomness that a plan cannot change.
namespace trestle {

// The seed for one layer's random numbers in one micro-batch of one step. It never depends on
// stage, rank, thread or time, so every split, schedule and recomputation draws the same numbers,
// and a resume needs no generator state. Use layer = -1 for what belongs to no layer.
constexpr std::uint64_t keyed_seed(std::uint64_t seed, std::int64_t step, std::int64_t layer,
                                   std::int64_t micro_batch) {
  std::uint64_t key = split_mix(seed);
  key = split_mix(key ^ static_cast<std::uint64_t>(step));
  key = split_mix(key ^ static_cast<std::uint64_t>(layer));
  return split_mix(key ^ static_cast<std::uint64_t>(micro_batch));
}

// The seed for a layer's initial weights: the model's seed and the layer's full name ("block1.conv")
// decide alone, so a process that makes only some of the layers gives them the weights they have in
// the whole model. Its step is -1, which no training step has.
constexpr std::uint64_t initial_seed(std::uint64_t seed, std::string_view layer) {
  return keyed_seed(seed, -1, static_cast<std::int64_t>(fnv1a(layer)), 0);
}

}  // namespace trestle
