#pragma once

#include <cstdint>
#include <string>
#include <string_view>

// Parses and formats bytes, bandwidths and durations.
namespace trestle {

using Bytes = std::int64_t;  // a number of bytes

namespace literals {
constexpr Bytes operator""_B(unsigned long long n) { return static_cast<Bytes>(n); }
constexpr Bytes operator""_KiB(unsigned long long n) { return static_cast<Bytes>(n) << 10; }
constexpr Bytes operator""_MiB(unsigned long long n) { return static_cast<Bytes>(n) << 20; }
constexpr Bytes operator""_GiB(unsigned long long n) { return static_cast<Bytes>(n) << 30; }
}  // namespace literals

// "512MiB", "4GiB", "1.5 GiB", "100 MB" (decimal), "4096" (bytes). Throws UsageError on any other
// text.
Bytes parse_bytes(std::string_view text);

// 222298112 -> "212.0 MiB". From KiB on it has one decimal, so that columns line up.
std::string format_bytes(Bytes bytes);

// "100Mbit", "1Gbit", "1.5 Gbit/s", "512 kbit" (bits in decimal units), "12.5MB/s", "100 MiB/s"
// (bytes): bytes per second, above 0. "/s" may be left out after bits. Throws UsageError on any
// other text.
double parse_bandwidth(std::string_view text);

// 12500000 -> "100 Mbit/s".
std::string format_bandwidth(double bytes_per_second);

// Seconds -> "310 ms", "3 min 12 s", "12.4 s", "85 us".
std::string format_duration(double seconds);

// 1944322 -> "1,944,322".
std::string format_count(std::int64_t count);

}  // namespace trestle
