#include "trestle/simulate/link.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trestle/base/error.h"

namespace trestle::simulate {
namespace {

using testing::HasSubstr;

TEST(Link, ParsesBandwidthAndLatency) {
  EXPECT_EQ(parse_link("100Mbit,5ms"), (Link{.bandwidth = 12.5e6, .latency = 5e-3}));
  EXPECT_EQ(parse_link(" 1Gbit , 50us "), (Link{.bandwidth = 125e6, .latency = 50e-6}));
  EXPECT_EQ(parse_link("12.5MB/s,0"), (Link{.bandwidth = 12.5e6, .latency = 0}));
  EXPECT_EQ(parse_link("10Gbit"), (Link{.bandwidth = 1.25e9, .latency = 0}));
  EXPECT_EQ(to_string(parse_link("100Mbit,5ms")), "100 Mbit/s and 5 ms each way");
}

TEST(Link, HeadersAndAcknowledgementsTakeBandwidth) {
  const Link link = without_headers(parse_link("100Mbit,5ms"));
  EXPECT_NEAR(link.bandwidth, 12.5e6 * 1448 / 1538, 1);
  EXPECT_EQ(link.latency, 5e-3);
  EXPECT_NEAR(link.both_ways, 0.9734, 1e-4);
}

TEST(Link, NamesWhatItCannotRead) {
  const auto message = [](const char* words) -> std::string {
    try {
      parse_link(words);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_THAT(message("fast"), HasSubstr("link 'fast': 'fast' is not a bandwidth"));
  EXPECT_THAT(message("100Mbit,fast"), HasSubstr("'fast' is not a time between hosts"));
  EXPECT_THAT(message("100Mbit,5"), HasSubstr("'5' is not a time"));
  EXPECT_THAT(message("5ms,100Mbit"), HasSubstr("'5ms' is not a bandwidth"));
  EXPECT_THAT(message("1Gbit,2ms,3"), HasSubstr("3 parts between commas"));
  EXPECT_THAT(message("1Gbit,61s"), HasSubstr("longer than"));
  EXPECT_THAT(message(""), HasSubstr("not a bandwidth"));
  EXPECT_THAT(message("fast"), HasSubstr("100Mbit,5ms"));
}

}  // namespace
}  // namespace trestle::simulate
