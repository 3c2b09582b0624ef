#include "trestle/comm/line_difference.h"

#include <sstream>

namespace trestle::comm {

namespace {

std::string line_of(std::istringstream& lines) {
  std::string line;
  return std::getline(lines, line) ? line : "nothing";
}

std::size_t first_difference(const std::string& a, const std::string& b) {
  std::size_t i = 0;
  while (i < a.size() && i < b.size() && a[i] == b[i]) ++i;
  return i;
}

// The text around `place`.
std::string shorten_around(const std::string& line, std::size_t place) {
  constexpr std::size_t most = 160, before = 40;
  if (line.size() <= most) return line;
  const std::size_t begin = place < most ? 0 : place - before;
  return (begin > 0 ? "..." : "") + line.substr(begin, most) +
         (begin + most < line.size() ? "..." : "");
}

}  // namespace

std::optional<RankDifference> find_line_difference(const Group& group, const std::string& own) {
  const auto whole = find_difference(group, own);
  if (!whole) return {};
  std::istringstream first(whole->first), other(whole->other);
  std::string a, b;
  do {
    a = line_of(first);
    b = line_of(other);
  } while (a == b && (first || other));
  const std::size_t place = first_difference(a, b);
  return RankDifference{whole->rank, shorten_around(a, place), shorten_around(b, place)};
}

}  // namespace trestle::comm
