#include "trestle/base/duration.h"

#include <array>
#include <charconv>
#include <cmath>
#include <string>

#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle {

namespace {

struct Unit {
  std::string_view name;
  double milliseconds;
};

constexpr std::array<Unit, 4> units = {{{"ms", 1}, {"s", 1e3}, {"min", 60e3}, {"h", 3600e3}}};
constexpr double longest = 365.0 * 24 * 3600e3;

[[noreturn]] void refuse_duration(std::string_view words) {
  throw UsageError(
      text("'", words.substr(0, 100), "' is not a time such as 500ms, 10s, 2min or 1h"));
}

}  // namespace

std::chrono::milliseconds parse_duration(std::string_view words) {
  const std::string word = trim(words);
  // from_chars would also accept "inf", "nan" and a sign.
  if (word.empty() || word[0] < '0' || word[0] > '9') refuse_duration(words);
  double number = 0;
  const char* const end = word.data() + word.size();
  const auto [rest, error] = std::from_chars(word.data(), end, number, std::chars_format::fixed);
  if (error != std::errc{}) refuse_duration(words);
  const std::string unit = trim(std::string_view(rest, static_cast<std::size_t>(end - rest)));
  for (const Unit& known : units) {
    if (unit != known.name) continue;
    const double milliseconds = number * known.milliseconds;
    if (milliseconds > longest) refuse_duration(words);
    return std::chrono::milliseconds(std::llround(milliseconds));
  }
  refuse_duration(words);
}

}  // namespace trestle
