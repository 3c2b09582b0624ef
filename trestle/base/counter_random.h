#pragma once

#include <cmath>
#include <cstdint>
#include <numbers>
#include <string_view>

#include "trestle/base/fnv1a.h"
#include "trestle/base/split_mix.h"

// Random numbers by index. Number i of a sequence depends on the sequence's key and on i alone, so
// any slice of a tensor can be drawn without the rest, whatever the layout.
//
//   CounterRandom random(seed, "blocks.3.attention.qkv.weight");
//   weight[i] = 0.02 * random.normal(i);  // in any order, by any thread or rank
namespace trestle {

class CounterRandom {
 public:
  explicit CounterRandom(std::uint64_t key) : key_(split_mix(key)) {}
  CounterRandom(std::uint64_t seed, std::string_view name)
      : CounterRandom(split_mix(seed) ^ fnv1a(name)) {}

  // 64 random bits.
  std::uint64_t bits(std::uint64_t index) const {
    return split_mix(split_mix(key_ + index * split_mix_step) ^ key_);
  }

  // In [0, 1), 53 random bits.
  double uniform(std::uint64_t index) const {
    return static_cast<double>(bits(index) >> 11) * 0x1.0p-53;
  }

  // Normal with mean 0 and deviation 1, by Box and Muller (1958): from the two halves of one
  // number's bits, so that each index needs no other one. The largest value is 6.66.
  double normal(std::uint64_t index) const {
    const std::uint64_t both = bits(index);
    const double radius = (static_cast<double>(both >> 32) + 0.5) * 0x1.0p-32;
    const double angle = static_cast<double>(both & 0xffffffffU) * 0x1.0p-32;
    return std::sqrt(-2 * std::log(radius)) * std::cos(2 * std::numbers::pi * angle);
  }

 private:
  std::uint64_t key_;
};

}  // namespace trestle
