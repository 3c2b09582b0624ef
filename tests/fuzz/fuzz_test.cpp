#include "tests/fuzz/fuzz.h"

#include <gtest/gtest-spi.h>

#include <set>
#include <stdexcept>

namespace trestle::fuzz {
namespace {

TEST(FuzzHarness, IsDeterministic) {
  std::vector<std::string> first;
  std::vector<std::string> second;
  run({"0F0,0B0"}, [&](std::string_view bytes) { first.emplace_back(bytes); }, {.iterations = 500});
  run({"0F0,0B0"}, [&](std::string_view bytes) { second.emplace_back(bytes); },
      {.iterations = 500});
  EXPECT_EQ(first, second);
  EXPECT_GT(std::set<std::string>(first.begin(), first.end()).size(), 300u);
}

TEST(FuzzHarness, CountsAcceptedAndRejectedInputs) {
  const Result result = run({"a", "b"},
                            [](std::string_view bytes) {
                              if (bytes.find('b') == std::string_view::npos)
                                throw FormatError("no b");
                            },
                            {.iterations = 1000});
  EXPECT_EQ(result.accepted + result.refused, 1002);
  EXPECT_GT(result.accepted, 100);
  EXPECT_GT(result.refused, 100);
}

TEST(FuzzHarness, ReportsTheInputOfAnUnexpectedException) {
  EXPECT_NONFATAL_FAILURE(run({"1234"},
                              [](std::string_view bytes) {
                                if (bytes.size() > 8) throw std::out_of_range("too far");
                              }),
                          "unexpected exception: too far");
}

TEST(FuzzHarness, WritesInputsAsLiterals) {
  EXPECT_EQ(literal(std::string_view("a\"\\\n\0\xff", 6)), R"("a\"\\\012\000\377")");
}

TEST(FuzzHarness, AcceptsEmptySeedsAndShortLimits) {
  run({""}, [](std::string_view bytes) { EXPECT_LE(bytes.size(), 3u); },
      {.iterations = 500, .longest = 3});
}

}  // namespace
}  // namespace trestle::fuzz
