#include "trestle/base/duration.h"

#include <gtest/gtest.h>

#include "trestle/base/error.h"

namespace trestle {
namespace {

using namespace std::chrono_literals;

TEST(Duration, ParsesAllUnits) {
  EXPECT_EQ(parse_duration("10s"), 10s);
  EXPECT_EQ(parse_duration("500 ms"), 500ms);
  EXPECT_EQ(parse_duration("2min"), 2min);
  EXPECT_EQ(parse_duration(" 1.5 h "), 90min);
  EXPECT_EQ(parse_duration("0s"), 0s);
  EXPECT_EQ(parse_duration("0.0004s"), 0ms);
}

TEST(Duration, RejectsOtherText) {
  for (const char* wrong : {"", "s", "10", "10 m", "-1s", "+1s", "nan s", "inf s", "1e3s", "1s2",
                            "1,5s", "9000000000s", "10 sec"})
    EXPECT_THROW(parse_duration(wrong), UsageError) << wrong;
}

}  // namespace
}  // namespace trestle
