#include "trestle/base/counted.h"

#include <gtest/gtest.h>

namespace trestle {
namespace {

TEST(Counted, UsesTheSingularForOne) {
  EXPECT_EQ(counted(0, "step"), "0 steps");
  EXPECT_EQ(counted(1, "step"), "1 step");
  EXPECT_EQ(counted(2, "step"), "2 steps");
  EXPECT_EQ(counted(1944322, "parameter"), "1,944,322 parameters");
  EXPECT_EQ(counted(1, "batch", "batches"), "1 batch");
  EXPECT_EQ(counted(3, "batch", "batches"), "3 batches");
  EXPECT_EQ(plural(1, "has", "have"), "has");
  EXPECT_EQ(plural(2, "has", "have"), "have");
}

}  // namespace
}  // namespace trestle
