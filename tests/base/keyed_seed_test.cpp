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

TEST(KeyedSeed, IsConstantAcrossVersions) {
  // Runs are resumed by later versions of the program, so this number must never change.
  static_assert(keyed_seed(42, 7, 3, 1) == keyed_seed(42, 7, 3, 1));
  EXPECT_EQ(keyed_seed(42, 7, 3, 1), 1825234068690658839ULL);
}

TEST(KeyedSeed, KeysInitialWeightsByLayerName) {
  // The published values of FNV-1a.
  static_assert(fnv1a("") == 0xcbf29ce484222325ULL);
  static_assert(fnv1a("a") == 0xaf63dc4c8601ec8cULL);
  static_assert(fnv1a("foobar") == 0x85944171f73967e8ULL);
  // Documented results depend on it, so this number must never change.
  EXPECT_EQ(initial_seed(42, "block1.conv"), 15675616280875146540ULL);
  EXPECT_NE(initial_seed(42, "block1.conv"), initial_seed(43, "block1.conv"));
  EXPECT_NE(initial_seed(42, "block1.conv"), initial_seed(42, "block2.conv"));
}

}  // namespace
}  // namespace trestle
