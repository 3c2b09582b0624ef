#pragma once

#include <functional>
#include <string>
#include <vector>

namespace trestle::checkpoint {

// Who saves a checkpoint together. As it is: one process alone.
//
//     SaveRanks{.rank = group.rank(), .size = group.size(),
//               .all_gather = [&](const std::string& mine) { return group.all_gather_bytes(mine); }}
struct SaveRanks {
  int rank = 0;
  int size = 1;
  // Gives every rank what all of them gave, in the order of ranks: no rank gets it before each has
  // called. Throws where a rank is gone.
  std::function<std::vector<std::string>(const std::string&)> all_gather = {};
};

}  // namespace trestle::checkpoint
