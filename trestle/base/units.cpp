#include "trestle/base/units.h"

#include <fmt/format.h>

#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle {
namespace {

constexpr std::array<std::pair<std::string_view, double>, 11> byte_units = {{
    {"", 1},
    {"B", 1},
    {"KiB", 0x1p10},
    {"MiB", 0x1p20},
    {"GiB", 0x1p30},
    {"TiB", 0x1p40},
    {"kB", 1e3},
    {"KB", 1e3},
    {"MB", 1e6},
    {"GB", 1e9},
    {"TB", 1e12},
}};

constexpr std::array<std::pair<std::string_view, double>, 5> bit_units = {
    {{"bit", 1}, {"kbit", 1e3}, {"Mbit", 1e6}, {"Gbit", 1e9}, {"Tbit", 1e12}}};

[[noreturn]] void refuse_bandwidth(std::string_view text) {
  throw UsageError(trestle::text("'", text.substr(0, 100), "' is not a bandwidth"),
                   {.hint = "Write it as '100Mbit', '1Gbit', '512kbit' or '12.5MB/s'."});
}

// The number at the begin of `word` and the unit behind it. `refuse` throws.
template <class Refuse>
std::pair<double, std::string> number_and_unit(const std::string& word, const Refuse& refuse) {
  // from_chars would also accept "inf", "nan" and a sign, so require a digit.
  if (word.empty() || std::isdigit(static_cast<unsigned char>(word.front())) == 0) refuse();
  double number = 0;
  const char* end = word.data() + word.size();
  const auto [rest, failure] = std::from_chars(word.data(), end, number, std::chars_format::fixed);
  if (failure != std::errc{}) refuse();
  return {number, trim(std::string_view(rest, static_cast<std::size_t>(end - rest)))};
}

[[noreturn]] void refuse_bytes(std::string_view text) {
  throw UsageError(trestle::text("'", text, "' is not a number of bytes"),
                   {.hint = "Write it as '512MiB', '1.5 GiB', '100 MB' or '4096'."});
}

}  // namespace

Bytes parse_bytes(std::string_view text) {
  const auto [number, unit] = number_and_unit(trim(text), [&] { refuse_bytes(text); });
  for (const auto& [name, factor] : byte_units) {
    if (unit != name) continue;
    const double bytes = number * factor;
    if (bytes >= 0x1p63) refuse_bytes(text);
    return static_cast<Bytes>(bytes);
  }
  refuse_bytes(text);
}

double parse_bandwidth(std::string_view text) {
  auto [number, unit] = number_and_unit(trim(text), [&] { refuse_bandwidth(text); });
  const bool per_second = unit.ends_with("/s");
  if (per_second) unit = trim(std::string_view(unit).substr(0, unit.size() - 2));
  double bytes = 0;
  for (const auto& [name, factor] : bit_units)
    if (unit == name) bytes = number * factor / 8;
  for (const auto& [name, factor] : byte_units)
    if (per_second && !name.empty() && unit == name) bytes = number * factor;
  if (!(bytes > 0)) refuse_bandwidth(text);
  return bytes;
}

std::string format_bandwidth(double bytes_per_second) {
  double value = 8 * bytes_per_second;
  std::size_t unit = 0;
  while (value >= 999.5 && unit + 1 < bit_units.size()) {
    value /= 1000;
    ++unit;
  }
  return fmt::format("{:.3g} {}/s", value, bit_units[unit].first);
}

std::string format_bytes(Bytes bytes) {
  constexpr std::array<std::string_view, 6> names = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
  if (std::abs(static_cast<double>(bytes)) < 1024) return fmt::format("{} B", bytes);
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  // 1023.95 would be printed as "1024.0", so use the next unit.
  while (std::abs(value) >= 1023.95 && unit + 1 < names.size()) {
    value /= 1024;
    ++unit;
  }
  return fmt::format("{:.1f} {}", value, names[unit]);
}

std::string format_duration(double seconds) {
  if (!std::isfinite(seconds)) return "unknown";
  if (seconds < 0) return "-" + format_duration(-seconds);
  if (seconds < 0.9995e-3) return fmt::format("{:.0f} us", seconds * 1e6);
  if (seconds < 0.9995) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds < 59.95) return fmt::format("{:.1f} s", seconds);
  if (seconds >= 1e15) return fmt::format("{:.3g} s", seconds);
  const auto whole = static_cast<std::int64_t>(std::llround(seconds));
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

std::string format_count(std::int64_t count) {
  std::string digits = std::to_string(count);
  const std::size_t first = digits.front() == '-' ? 1 : 0;
  for (std::size_t at = digits.size(); at > first + 3;) {
    at -= 3;
    digits.insert(at, ",");
  }
  return digits;
}

}  // namespace trestle
