#include "trestle/base/text.h"

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdio>
#include <numeric>

#include "trestle/base/utf8.h"

namespace trestle {
namespace {

// Optimal string alignment distance: insertions, deletions, replacements, and swaps of neighbours,
// because swapped letters are the most common typing error.
std::size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<std::size_t> before;
  std::vector<std::size_t> last(b.size() + 1);
  std::iota(last.begin(), last.end(), std::size_t{0});
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::vector<std::size_t> now(b.size() + 1, i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = last[j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      now[j] = std::min({last[j] + 1, now[j - 1] + 1, replaced});
      if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1]) {
        now[j] = std::min(now[j], before[j - 2] + 1);
      }
    }
    before = std::move(last);
    last = std::move(now);
  }
  return last.back();
}

std::string lower_case(std::string_view word) {
  std::string out(word);
  std::transform(out.begin(), out.end(), out.begin(),
                 [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

// A byte as "\\n", "\\\\" or "\\x1b".
std::string escaped(char byte) {
  constexpr std::string_view plain = "\n\r\t\\", letters = "nrt\\";
  if (const auto at = plain.find(byte); at != std::string_view::npos) return {'\\', letters[at]};
  char out[8];
  std::snprintf(out, sizeof out, "\\x%02x",
                static_cast<unsigned>(static_cast<unsigned char>(byte)));
  return out;
}

// Also a control character of Unicode from U+0080 to U+009F, which are two bytes in UTF-8.
bool is_control(std::string_view character) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(character[i]); };
  if (character.size() == 1) return byte(0) < 0x20 || byte(0) == 0x7f;
  return byte(0) == 0xc2 && byte(1) < 0xa0;
}

bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)) != 0; }

}  // namespace

std::string nearest(std::string_view word, const std::vector<std::string>& candidates) {
  // Up to a third of the letters may differ; with more, a suggestion would be misleading. The
  // dashes of a flag are no letters.
  const std::size_t letters = word.size() - std::min(word.find_first_not_of('-'), word.size());
  const std::size_t limit = std::max<std::size_t>(1, letters / 3);
  std::size_t best = limit + 1;
  std::string found;
  for (const auto& candidate : candidates) {
    const std::size_t distance = edit_distance(lower_case(word), lower_case(candidate));
    if (distance < best) {
      best = distance;
      found = candidate;
    }
  }
  return found;
}

std::vector<std::string> split(std::string_view text, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  while (true) {
    const std::size_t end = text.find(separator, begin);
    parts.emplace_back(text.substr(begin, end - begin));
    if (end == std::string_view::npos) return parts;
    begin = end + 1;
  }
}

std::string trim(std::string_view text) {
  while (!text.empty() && is_space(text.front())) text.remove_prefix(1);
  while (!text.empty() && is_space(text.back())) text.remove_suffix(1);
  return std::string(text);
}

std::string printable(std::string_view text, std::size_t most) {
  std::string out;
  for (std::size_t count = 0; !text.empty(); ++count) {
    if (count == most) return out + "...";
    const std::size_t length = utf8_length(text, 0);
    const std::string_view character = text.substr(0, std::max<std::size_t>(1, length));
    if (length == 0 || is_control(character) || character == "\\") {
      for (const char byte : character) out += escaped(byte);
    } else {
      out += character;
    }
    text.remove_prefix(character.size());
  }
  return out;
}

}  // namespace trestle
