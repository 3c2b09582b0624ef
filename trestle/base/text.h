#pragma once

#include <cstddef>
#include <sstream>
#include <string>
#include <string_view>
#include <vector>

// Small string helpers. Sources that include torch use these instead of fmt, because the torch
// wheel ships another fmt.
namespace trestle {

// text("stage ", 3, " of ", 4) -> "stage 3 of 4". Concatenates anything with operator<<.
template <class... Parts>
std::string text(const Parts&... parts) {
  std::ostringstream out;
  (out << ... << parts);
  return out.str();
}

// join({1, 2, 3}, ", ") -> "1, 2, 3".
template <class Range>
std::string join(const Range& items, std::string_view separator) {
  std::ostringstream out;
  bool first = true;
  for (const auto& item : items) {
    if (!first) out << separator;
    out << item;
    first = false;
  }
  return out.str();
}

// The candidate closest to `word` by edit distance, or "" if none is close enough.
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

// "a,b,,c" -> {"a", "b", "", "c"}.
std::vector<std::string> split(std::string_view text, char separator);

// Removes leading and trailing white space.
std::string trim(std::string_view text);

// Text from a file in a form that is safe on a terminal: control characters, backslashes and bytes
// that are not UTF-8 become "\\n", "\\x1b" and the like. After `most` characters "..." ends it.
std::string printable(std::string_view text, std::size_t most);

}  // namespace trestle
