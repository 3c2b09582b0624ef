#include "trestle/base/random.h"

#include <gtest/gtest.h>

#include "trestle/base/keyed_seed.h"

namespace trestle {
namespace {

// The first numbers of the reference implementation (Vigna, splitmix64.c) for the state 0.
TEST(Random, EqualsSplitMix64) {
  Random random(0);
  EXPECT_EQ(random.next(), 0xe220a8397b1dcdafULL);
  EXPECT_EQ(random.next(), 0x6e789e6aa1b965f4ULL);
  EXPECT_EQ(random.next(), 0x06c45d188009454fULL);
}

TEST(Random, MixesKeyedSeeds) {
  EXPECT_EQ(keyed_seed(0, 0, 0, 0), split_mix(split_mix(split_mix(split_mix(0)))));
}

TEST(Random, KeepsBelowInRange) {
  Random random(7);
  for (int i = 0; i < 1000; ++i) EXPECT_LT(random.below(3), 3u);
  EXPECT_EQ(random.below(1), 0u);
}

}  // namespace
}  // namespace trestle
