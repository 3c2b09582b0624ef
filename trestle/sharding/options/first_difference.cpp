#include "trestle/sharding/options/first_difference.h"

#include <sstream>

#include "trestle/base/text.h"

namespace trestle::sharding {

std::string first_difference(const std::string& first, int first_rank, const std::string& other,
                             int other_rank) {
  std::istringstream mine(first), theirs(other);
  std::string a, b;
  do {
    std::getline(mine, a);
    std::getline(theirs, b);
    if (!mine && a.empty()) a = "\tis not there";
    if (!theirs && b.empty()) b = "\tis not there";
  } while (a == b);
  const auto name = [](const std::string& line) { return line.substr(0, line.find('\t')); };
  const auto rest = [](const std::string& line) { return line.substr(line.find('\t') + 1); };
  if (name(a).empty() || name(b).empty() || name(a) == name(b))
    return text(name(a).empty() ? name(b) : name(a), " ", rest(a), " on rank ", first_rank, " and ",
                rest(b).substr(rest(b).starts_with("is ") && name(a) == name(b) ? 3 : 0),
                " on rank ", other_rank);
  return text("rank ", first_rank, " has ", name(a), " where rank ", other_rank, " has ", name(b));
}

}  // namespace trestle::sharding
