#include "trestle/base/units.h"

#include <gtest/gtest.h>

#include <limits>

#include "trestle/base/error.h"

namespace trestle {
namespace {

using namespace trestle::literals;

TEST(Units, ParsesBytes) {
  EXPECT_EQ(parse_bytes("512MiB"), 512_MiB);
  EXPECT_EQ(parse_bytes("4GiB"), 4_GiB);
  EXPECT_EQ(parse_bytes(" 1.5 GiB "), 1536_MiB);
  EXPECT_EQ(parse_bytes("100 MB"), 100'000'000);
  EXPECT_EQ(parse_bytes("4096"), 4096);
  EXPECT_EQ(parse_bytes("7B"), 7_B);
  EXPECT_EQ(parse_bytes("0"), 0);
}

TEST(Units, RejectsInvalidByteSizes) {
  for (const char* text : {"", "MiB", "-1MiB", "1 mib", "12 apples", "inf", "nan", "1e3", "0x10",
                           "1.2.3", "99999999 TiB", "9223372036854775808", "1MiB 2"}) {
    EXPECT_THROW(parse_bytes(text), UsageError) << text;
  }
}

TEST(Units, FormatsBytes) {
  EXPECT_EQ(format_bytes(222298112), "212.0 MiB");
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1024), "1.0 KiB");
  EXPECT_EQ(format_bytes(1_MiB - 1), "1.0 MiB");
  EXPECT_EQ(format_bytes(-3_GiB), "-3.0 GiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<Bytes>::max()), "8.0 EiB");
  EXPECT_EQ(format_bytes(std::numeric_limits<Bytes>::min()), "-8.0 EiB");
}

TEST(Units, ParsesBandwidths) {
  EXPECT_EQ(parse_bandwidth("100Mbit"), 12.5e6);
  EXPECT_EQ(parse_bandwidth(" 1 Gbit/s "), 125e6);
  EXPECT_EQ(parse_bandwidth("512kbit"), 64e3);
  EXPECT_EQ(parse_bandwidth("12.5MB/s"), 12.5e6);
  EXPECT_EQ(parse_bandwidth("1 MiB/s"), 1048576);
}

TEST(Units, RejectsInvalidBandwidths) {
  for (const char* text : {"", "Mbit", "0Mbit", "-1Mbit", "100", "100Mb", "100mbit", "5ms", "inf",
                           "100MB", "1/s", "1 Mbit/h"}) {
    EXPECT_THROW(parse_bandwidth(text), UsageError) << text;
  }
}

TEST(Units, FormatsBandwidths) {
  EXPECT_EQ(format_bandwidth(12.5e6), "100 Mbit/s");
  EXPECT_EQ(format_bandwidth(125e6), "1 Gbit/s");
  EXPECT_EQ(format_bandwidth(11.83e6), "94.6 Mbit/s");
  EXPECT_EQ(format_bandwidth(1), "8 bit/s");
}

TEST(Units, FormatsDurations) {
  EXPECT_EQ(format_duration(0.310), "310 ms");
  EXPECT_EQ(format_duration(192), "3 min 12 s");
  EXPECT_EQ(format_duration(12.4), "12.4 s");
  EXPECT_EQ(format_duration(85e-6), "85 us");
  EXPECT_EQ(format_duration(0), "0 us");
  EXPECT_EQ(format_duration(59.97), "1 min 0 s");
  EXPECT_EQ(format_duration(0.9996), "1.0 s");
  EXPECT_EQ(format_duration(3599.7), "1 h 0 min");
  EXPECT_EQ(format_duration(-0.5), "-500 ms");
  EXPECT_EQ(format_duration(std::numeric_limits<double>::infinity()), "unknown");
}

TEST(Units, GroupsDigits) {
  EXPECT_EQ(format_count(1944322), "1,944,322");
  EXPECT_EQ(format_count(999), "999");
  EXPECT_EQ(format_count(-1000), "-1,000");
  EXPECT_EQ(format_count(-100), "-100");
  EXPECT_EQ(format_count(0), "0");
}

}  // namespace
}  // namespace trestle
