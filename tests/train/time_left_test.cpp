#include "trestle/train/progress/time_left.h"

#include <gtest/gtest.h>

namespace trestle::train {
namespace {

TEST(TimeLeft, IsUnknownBeforeMeasurement) {
  TimeLeft times;
  EXPECT_FALSE(times.of({.training = 3}));
  times.training.add(10);
  EXPECT_FALSE(times.of({.training = 3})) << "the first batch of a process does not count";
  times.training.add(2);
  EXPECT_EQ(times.of({.training = 3}), 6);
  EXPECT_FALSE(times.of({.training = 3, .validation = 1}));
  times.validation.add(0.5);
  EXPECT_EQ(times.of({.training = 3, .validation = 4}), 8);
  EXPECT_EQ(times.of({.training = 3, .validation = 4, .closings = 2}), 8);
  times.closing.add(1);
  EXPECT_EQ(times.of({.training = 3, .validation = 4, .closings = 2}), 10);
}

TEST(TimeLeft, FollowsMachineThatSlowsDown) {
  BatchTime time;
  time.add(100);
  for (int i = 0; i < 4; ++i) time.add(i % 2 == 0 ? 1 : 3);
  EXPECT_DOUBLE_EQ(time.seconds(), 2) << "a mean without the first batch";
  for (int i = 0; i < 1000; ++i) time.add(2);
  for (int i = 0; i < 100; ++i) time.add(4);
  EXPECT_GT(time.seconds(), 3.8);
}

}  // namespace
}  // namespace trestle::train
