#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "trestle/base/split_mix.h"

// Random numbers that are equal on every machine and with every standard library. The distributions
// of the standard library are not.
namespace trestle {

// SplitMix64. Seed it with keyed_seed() so that every use has its own sequence.
//
//   Random random(keyed_seed(seed, epoch, -1, 0));
//   double x = random.uniform(-1, 1);
class Random {
 public:
  explicit Random(std::uint64_t seed) : state_(seed) {}

  std::uint64_t next() {
    const std::uint64_t value = split_mix(state_);
    state_ += split_mix_step;
    return value;
  }

  // In [0, 1), 53 random bits.
  double uniform() { return static_cast<double>(next() >> 11) * 0x1.0p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }

  // In [0, bound), bound > 0, without modulo bias.
  std::uint64_t below(std::uint64_t bound) {
    const std::uint64_t reject = (0 - bound) % bound;
    std::uint64_t value = next();
    while (value < reject) value = next();
    return value % bound;
  }

 private:
  std::uint64_t state_;
};

// Fisher and Yates's shuffle.
template <class T>
void shuffle(std::vector<T>& items, Random& random) {
  for (std::size_t left = items.size(); left > 1; --left) {
    std::swap(items[left - 1], items[random.below(left)]);
  }
}

}  // namespace trestle
