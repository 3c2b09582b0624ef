#include "trestle/comm/gather.h"

#include <map>

#include "trestle/base/text.h"
#include "trestle/comm/rank_error.h"

namespace trestle::comm {

void throw_malformed(const Group& group, int rank, std::size_t size) {
  const std::string reason = text("rank ", group.ranks().at(static_cast<std::size_t>(rank)),
                                  " sent a malformed message of ", size,
                                  " bytes: the ranks run different programs or versions");
  group.fail(reason);
  throw RankError(reason);
}

std::optional<RankDifference> find_difference(const Group& group, const std::string& own) {
  const std::vector<std::string> all = group.all_gather_bytes(own);
  for (std::size_t rank = 1; rank < all.size(); ++rank)
    if (all[rank] != all[0]) return RankDifference{static_cast<int>(rank), all[0], all[rank]};
  return {};
}

std::optional<RankClash> find_clash(const Group& group, const std::vector<std::string>& own) {
  std::map<std::string, int> owners;
  const auto all = all_gather_values(group, own);
  for (int rank = 0; rank < static_cast<int>(all.size()); ++rank) {
    for (const std::string& value : all[static_cast<std::size_t>(rank)]) {
      const int owner = owners.try_emplace(value, rank).first->second;
      if (owner != rank) return RankClash{owner, rank, value};
    }
  }
  return {};
}

}  // namespace trestle::comm
