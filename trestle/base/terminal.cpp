#include "trestle/base/terminal.h"

#include <sys/ioctl.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstdlib>

#include "trestle/base/utf8.h"

namespace trestle {

namespace {

struct Range {
  std::uint32_t first, last;
};

// Blocks of Unicode's EastAsianWidth.txt. wcwidth() depends on the locale, which trestle does not
// set.
constexpr std::array<Range, 11> wide = {{{0x1100, 0x115f},
                                         {0x2e80, 0x303e},
                                         {0x3041, 0xa4cf},
                                         {0xa960, 0xa97f},
                                         {0xac00, 0xd7a3},
                                         {0xf900, 0xfaff},
                                         {0xfe30, 0xfe6f},
                                         {0xff00, 0xff60},
                                         {0xffe0, 0xffe6},
                                         {0x1f300, 0x1faff},
                                         {0x20000, 0x3fffd}}};

constexpr std::array<Range, 7> without_width = {{{0x0000, 0x001f},
                                                 {0x0300, 0x036f},
                                                 {0x1ab0, 0x1aff},
                                                 {0x200b, 0x200f},
                                                 {0x20d0, 0x20ff},
                                                 {0xfe00, 0xfe0f},
                                                 {0xfe20, 0xfe2f}}};

template <std::size_t n>
bool in(const std::array<Range, n>& ranges, std::uint32_t letter) {
  for (const Range& range : ranges)
    if (letter >= range.first && letter <= range.last) return true;
  return false;
}

struct Letter {
  std::size_t bytes = 1;
  int columns = 1;
};

// A colour has no width; a byte that is not UTF-8 takes a column.
Letter next_letter(std::string_view words) {
  const auto byte = [&](std::size_t i) { return static_cast<unsigned char>(words[i]); };
  if (byte(0) == 0x1b) {
    const auto end = words.find('m');
    return {end == std::string_view::npos ? 1 : end + 1, 0};
  }
  const std::size_t bytes = utf8_length(words, 0);
  if (bytes == 0) return {};
  std::uint32_t letter = bytes == 1 ? byte(0) : byte(0) & (0xffU >> (bytes + 1));
  for (std::size_t i = 1; i < bytes; ++i) letter = letter << 6U | (byte(i) & 0x3fU);
  return {bytes, in(without_width, letter) ? 0 : in(wide, letter) ? 2 : 1};
}

constexpr std::string_view dot = " · ";

// The number of bytes of the separator between two parts at the beginning of `words`; 0 if there is
// none.
std::size_t gap_at(std::string_view words) {
  if (words.starts_with(dot)) return dot.size();
  const std::size_t spaces = std::min(words.find_first_not_of(' '), words.size());
  return spaces >= 2 && spaces < words.size() ? spaces : 0;
}

}  // namespace

int columns_of(std::string_view words) {
  int columns = 0;
  while (!words.empty()) {
    const Letter letter = next_letter(words);
    columns += letter.columns;
    words.remove_prefix(letter.bytes);
  }
  return columns;
}

std::string cut_to(std::string_view words, int columns) {
  std::size_t bytes = 0;
  for (std::string_view rest = words; !rest.empty();) {
    const Letter letter = next_letter(rest);
    columns -= letter.columns;
    if (columns < 0) break;
    bytes += letter.bytes;
    rest.remove_prefix(letter.bytes);
  }
  return std::string(words.substr(0, bytes));
}

std::string folded(std::string_view line, int columns, int indent) {
  std::string out;
  std::size_t begin = 0;  // of the part at hand, with the gap before it
  std::size_t gap = 0;    // bytes of that
  int at = 0;             // the column where the output stands
  const auto put_part = [&](std::size_t end) {
    const std::string_view part = line.substr(begin, end - begin);
    const int width = columns_of(part);
    if (gap > 0 && at + width > columns) {
      out += "\n" + std::string(static_cast<std::size_t>(indent), ' ');
      out += part.substr(gap);
      at = indent + columns_of(part.substr(gap));
    } else {
      out += part;
      at += width;
    }
    begin = end;
  };
  int column = 0;  // of the line as one
  for (std::size_t i = 0; i < line.size();) {
    const std::size_t found = column >= indent ? gap_at(line.substr(i)) : 0;
    if (found > 0) {
      put_part(i);
      gap = found;
    }
    const Letter letter = next_letter(line.substr(i));
    const std::size_t bytes = found > 0 ? found : letter.bytes;
    column += found > 0 ? columns_of(line.substr(i, found)) : letter.columns;
    i += bytes;
  }
  put_part(line.size());
  return out;
}

std::string wrapped(std::string_view words, int columns, int indent) {
  std::string out;
  int at = 0;
  while (!words.empty()) {
    const std::size_t begin = words.find_first_not_of(' ');
    if (begin == std::string_view::npos) break;
    const std::size_t end = std::min(words.find(' ', begin), words.size());
    const std::string_view word = words.substr(begin, end - begin);
    const std::string_view gap = words.substr(0, begin);
    const int width = columns_of(word);
    if (!out.empty() && at + static_cast<int>(gap.size()) + width > columns) {
      out += "\n" + std::string(static_cast<std::size_t>(indent), ' ');
      at = indent;
    } else {
      out += gap;
      at += static_cast<int>(gap.size());
    }
    out += word;
    at += width;
    words.remove_prefix(end);
  }
  return out;
}

Columns columns_of_terminal(int descriptor) {
  return [descriptor] {
    constexpr int usual = 80;
    winsize size{};
    return ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : usual;
  };
}

int columns_for_text(int descriptor) {
  constexpr int narrowest = 20, widest = 10'000;
  const char* const variable = std::getenv("COLUMNS");
  if (variable != nullptr) {
    const std::string_view number = variable;
    int columns = 0;
    const auto [end, error] =
        std::from_chars(number.data(), number.data() + number.size(), columns);
    if (error == std::errc() && end == number.data() + number.size() && columns >= narrowest &&
        columns <= widest)
      return columns;
  }
  return std::max(columns_of_terminal(descriptor)(), narrowest);
}

}  // namespace trestle
