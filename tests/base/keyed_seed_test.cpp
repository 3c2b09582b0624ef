#include "trestle/base/keyed_seed.h"

#include <gtest/gtest.h>

#include <set>

namespace trestle {
namespace {

TEST(KeyedSeed, EveryPartOfTheKeyCounts) {
  std::set<std::uint64_t> seen;
  for (std::uint64_t seed = 0; seed < 4; ++seed) {
    for (int step = 0; step < 6; ++step) {
      for (int layer = -1; layer < 6; ++layer) {
        for (int micro_batch = 0; micro_batch < 6; ++micro_batch) {
          seen.insert(keyed_seed(seed, step, layer, micro_batch));
        }
      }
    }
  }
  EXPECT_EQ(seen.size(), 4u * 6 * 7 * 6);
}

TEST(KeyedSeed, IsTheSameAtCompileTimeAndAlways) {
  // Runs are resumed by later versions of the program: this number must never change.
  static_assert(keyed_seed(42, 7, 3, 1) == keyed_seed(42, 7, 3, 1));
  EXPECT_EQ(keyed_seed(42, 7, 3, 1), 1825234068690658839ULL);
}

}  // namespace
}  // namespace trestle
