#include "tests/fuzz/fuzz.h"
#include "trestle/base/duration.h"
#include "trestle/base/units.h"
#include "trestle/schedule/lower.h"

namespace trestle {
namespace {

TEST(Fuzz, Bytes) {
  const auto result = fuzz::run({"512MiB", "4GiB", "1.5 GiB", "100 MB", "4096", " 7 B "},
                                [](std::string_view text) {
                                  const Bytes bytes = parse_bytes(text);
                                  EXPECT_GE(bytes, 0) << text;
                                  EXPECT_FALSE(format_bytes(bytes).empty());
                                });
  EXPECT_GT(result.accepted, 500);
  EXPECT_GT(result.refused, 5000);
}

TEST(Fuzz, Durations) {
  const auto result = fuzz::run({"10s", "500 ms", "2min", "1.5 h"}, [](std::string_view text) {
    EXPECT_GE(parse_duration(text).count(), 0) << text;
  });
  EXPECT_GT(result.accepted, 500);
  EXPECT_GT(result.refused, 5000);
}

TEST(Fuzz, RecomputeModes) {
  fuzz::run({"never", "except_last", "always"},
            [](std::string_view text) { schedule::parse_recompute(text); }, {.iterations = 3000});
}

}  // namespace
}  // namespace trestle
