#include "trestle/train/progress/bar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sstream>

namespace trestle::train {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::Not;

const BarLine usual = {
    "epoch 1/6", 12, 24, {"  loss 0.412", "  8 s left", ", run 1 min 32 s", "  40.7 images/s"}};

// The text that a terminal shows on the line after `written`.
std::string left_on_line(const std::string& written) {
  const auto erased = written.rfind("\r\x1b[2K");
  return erased == std::string::npos ? written : written.substr(erased + 5);
}

TEST(Bar, FitsAnyWidth) {
  const std::vector<BarLine> lines = {usual,
                                      {"epoch 1000/1000 validation", 60000, 60000, usual.words},
                                      {"drawn", 0, 5},
                                      {"车 車と猫", 3, 4, {"  é 車"}},
                                      {"", 1, 2}};
  for (const BarLine& line : lines)
    for (int columns = 20; columns <= 200; ++columns)
      for (const Colours colours : {Colours::Off, Colours::On}) {
        const std::string drawn = draw(line, columns, colours);
        EXPECT_LE(columns_of(drawn), columns) << drawn;
        EXPECT_THAT(drawn, HasSubstr(std::to_string(line.done) + "/"));
        EXPECT_THAT(drawn, Not(HasSubstr("\n")));
      }
}

TEST(Bar, DropsLeastImportantPartsInNarrowWindows) {
  EXPECT_EQ(draw(usual, 200),
            "epoch 1/6 ━━━━━━━━━━────────── 12/24  loss 0.412  8 s left, run 1 min 32 s"
            "  40.7 images/s");
  EXPECT_EQ(draw(usual, 79),
            "epoch 1/6 ━━━━━───── 12/24  loss 0.412  8 s left, run 1 min 32 s  40.7 images/s");
  EXPECT_EQ(draw(usual, 70),
            "epoch 1/6 ━━━━━━━━──────── 12/24  loss 0.412  8 s left, run 1 min 32 s");
  EXPECT_EQ(draw(usual, 60), "epoch 1/6 ━━━━━━━━━━────────── 12/24  loss 0.412  8 s left");
  EXPECT_EQ(draw(usual, 40), "epoch 1/6 ━━━━━━────── 12/24  loss 0.412");
  EXPECT_EQ(draw(usual, 30), "epoch 1/6 ━━━━━━━─────── 12/24");
  EXPECT_EQ(draw(usual, 20), "epoch 1/6 12/24");
  EXPECT_EQ(draw({"epoch 1/6 validation", 3, 6}, 16), "validation 3/6");
  EXPECT_EQ(draw(usual, 8), "12/24");
  EXPECT_EQ(draw(usual, 3), "12/");
}

TEST(Bar, IsEmptyAtBeginAndFullAtEnd) {
  EXPECT_EQ(draw({"", 3, 3}, 80), "━━━━━━━━━━━━━━━━━━━━ 3/3");
  EXPECT_EQ(draw({"", 0, 3}, 80), "──────────────────── 0/3");
  EXPECT_EQ(draw({"", 0, 0}, 80), "━━━━━━━━━━━━━━━━━━━━ 0/0");
}

TEST(Bar, FollowsWindowWidth) {
  std::ostringstream out;
  int columns = 81;
  Bar bar(out, Colours::Off, [&] { return columns; });
  bar.show(usual);
  EXPECT_EQ(left_on_line(out.str()), draw(usual, 80));
  columns = 31;
  BarLine last = usual;
  last.done = last.all;
  bar.show(last);
  EXPECT_EQ(left_on_line(out.str()), draw(last, 30)) << "one column narrower than the window";
}

TEST(Bar, IsErasedCompletely) {
  std::ostringstream out;
  {
    Bar bar(out, Colours::Off, [] { return 80; });
    bar.erase();
    EXPECT_EQ(out.str(), "") << "no bar was shown";
    bar.show(usual);
    EXPECT_NE(left_on_line(out.str()), "");
  }
  EXPECT_EQ(left_on_line(out.str()), "");
}

TEST(Bar, LimitsItsRedraws) {
  std::ostringstream out;
  Bar bar(out, Colours::Off, [] { return 80; });
  for (int i = 1; i <= 100000; ++i) bar.show({"drawn", i, 100000});
  EXPECT_LT(out.str().size(), 1000000u);
  EXPECT_THAT(out.str(), EndsWith(" 100000/100000"));
}

TEST(Bar, TimeLeftIsInWholeSeconds) {
  EXPECT_EQ(format_time_left(0.2), "1 s");
  EXPECT_EQ(format_time_left(8.4), "8 s");
  EXPECT_EQ(format_time_left(59.6), "1 min 0 s");
  EXPECT_EQ(format_time_left(92), "1 min 32 s");
  EXPECT_EQ(format_time_left(7200), "2 h 0 min");
}

}  // namespace
}  // namespace trestle::train
