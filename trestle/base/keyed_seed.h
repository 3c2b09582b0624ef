#pragma once

#include <cstdint>
#include <string_view>

#include "trestle/base/fnv1a.h"
#include "trestle/base/split_mix.h"

// Seeds that do not depend on the parallel plan.
namespace trestle {

// The seed for one layer's random numbers in one micro-batch of one step. It does not depend on
// stage, rank, thread or time. Every split, schedule and recomputation therefore draws the same
// numbers, and a resume needs no generator state. Use layer = -1 for numbers that belong to no
// layer.
constexpr std::uint64_t keyed_seed(std::uint64_t seed, std::int64_t step, std::int64_t layer,
                                   std::int64_t micro_batch) {
  std::uint64_t key = split_mix(seed);
  key = split_mix(key ^ static_cast<std::uint64_t>(step));
  key = split_mix(key ^ static_cast<std::uint64_t>(layer));
  return split_mix(key ^ static_cast<std::uint64_t>(micro_batch));
}

// The seed for a layer's initial weights. It depends only on the model's seed and the layer's full
// name ("block1.conv"), so a process that creates only some layers gives them the same weights as
// in the whole model. It uses step -1, which no training step has.
constexpr std::uint64_t initial_seed(std::uint64_t seed, std::string_view layer) {
  return keyed_seed(seed, -1, static_cast<std::int64_t>(fnv1a(layer)), 0);
}

}  // namespace trestle
