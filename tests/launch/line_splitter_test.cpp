#include "trestle/launch/line_splitter.h"

#include <gmock/gmock.h>

#include <vector>

#include "trestle/base/random.h"

namespace trestle::launch {
namespace {

using namespace std::chrono_literals;
using Lines = std::vector<std::string>;
using ::testing::ElementsAre;

struct Splitter {
  LineSplitter splitter;
  Lines lines;
  LineSplitter::Clock::time_point now = LineSplitter::Clock::time_point(1h);

  void add(std::string_view bytes) {
    splitter.add(bytes, now, [&](std::string_view line) { lines.emplace_back(line); });
  }
  void end() {
    splitter.end([&](std::string_view line) { lines.emplace_back(line); });
  }
};

TEST(LineSplitter, ReturnsWholeLinesFromAnyChunks) {
  Splitter splitter;
  splitter.add("one\ntw");
  EXPECT_THAT(splitter.lines, ElementsAre("one"));
  splitter.add("o\n\nthree");
  EXPECT_THAT(splitter.lines, ElementsAre("one", "two", ""));
  splitter.end();
  EXPECT_THAT(splitter.lines, ElementsAre("one", "two", "", "three"));
}

TEST(LineSplitter, ReturnsNoEmptyLastLine) {
  Splitter splitter;
  splitter.add("one\n");
  splitter.end();
  EXPECT_THAT(splitter.lines, ElementsAre("one"));
}

TEST(LineSplitter, AcceptsWindowsLineEndings) {
  Splitter splitter;
  splitter.add("one\r\ntwo\r");
  splitter.add("\nthree\r");
  splitter.end();
  EXPECT_THAT(splitter.lines, ElementsAre("one", "two", "three"));
}

TEST(LineSplitter, ShowsBarOncePerSecondAndAtItsEnd) {
  Splitter splitter;
  for (int percent = 0; percent <= 100; ++percent) {
    splitter.add("\rbar " + std::to_string(percent) + " %");
    splitter.now += 25ms;
  }
  splitter.add("\n");
  EXPECT_THAT(splitter.lines, ElementsAre("bar 0 %", "bar 40 %", "bar 80 %", "bar 100 %"));
}

TEST(LineSplitter, ErasedBarLeavesNothing) {
  Splitter splitter;
  splitter.add("\r\x1b[2Kbar 1\r\x1b[2Kbar 2\r\x1b[2Kepoch 1\n");
  EXPECT_THAT(splitter.lines, ElementsAre("bar 1", "epoch 1"));
}

TEST(LineSplitter, SplitsEndlessLine) {
  Splitter splitter;
  const std::string much(3 * LineSplitter::longest_line + 5, 'x');
  splitter.add(much);
  EXPECT_EQ(splitter.lines.size(), 3u);
  splitter.end();
  std::string all;
  for (const std::string& line : splitter.lines) all += line;
  EXPECT_EQ(all, much);
}

TEST(LineSplitter, ResultDoesNotDependOnChunks) {
  Random random(7);
  std::string bytes;
  for (int i = 0; i < 5000; ++i) bytes += "ab\r\n\x1b[2K"[random.below(8)];
  Splitter whole;
  whole.add(bytes);
  whole.end();
  for (int round = 0; round < 20; ++round) {
    Splitter pieces;
    for (std::size_t at = 0; at < bytes.size();) {
      const std::size_t size = 1 + random.below(9);
      pieces.add(std::string_view(bytes).substr(at, size));
      at += size;
    }
    pieces.end();
    EXPECT_EQ(pieces.lines, whole.lines);
  }
}

TEST(LineSplitter, KeepsColoursAndRemovesCursorMoves) {
  EXPECT_EQ(without_cursor_moves("\x1b[31mred\x1b[0m"), "\x1b[31mred\x1b[0m");
  EXPECT_EQ(without_cursor_moves("\x1b[2K\x1b[1Gx\x1b[3A"), "x");
  EXPECT_EQ(without_cursor_moves("a\x1b[12;3"), "a");
  EXPECT_EQ(without_cursor_moves("a\x1b"), "a\x1b");
  EXPECT_EQ(without_cursor_moves(""), "");
}

}  // namespace
}  // namespace trestle::launch
