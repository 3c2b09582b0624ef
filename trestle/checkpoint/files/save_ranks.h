#pragma once

#include <functional>
#include <string>
#include <vector>

namespace trestle::checkpoint {

// The ranks that save a checkpoint together. The default is a single process.
//
//     SaveRanks{.rank = group.rank(),
//               .size = group.size(),
//               .all_gather = [&](const std::string& own) { return group.all_gather_bytes(own); }}
struct SaveRanks {
  int rank = 0;
  int size = 1;
  // Returns the strings of all ranks, in the order of ranks, after all have called it. Throws if a
  // rank is gone.
  std::function<std::vector<std::string>(const std::string&)> all_gather = {};
};

}  // namespace trestle::checkpoint
