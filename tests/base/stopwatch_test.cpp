#include "trestle/base/stopwatch.h"

#include <gtest/gtest.h>

#include <thread>

namespace trestle {
namespace {

TEST(Stopwatch, MeasuresSeconds) {
  const Stopwatch watch;
  const double first = watch.seconds();
  EXPECT_GE(first, 0);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  EXPECT_GE(watch.seconds() - first, 0.02);
  EXPECT_LT(watch.seconds(), 20);
}

}  // namespace
}  // namespace trestle
