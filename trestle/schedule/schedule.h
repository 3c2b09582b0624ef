#pragma once

#include <string>
#include <vector>

#include "trestle/schedule/action.h"

// A training step as data: an ordered list of actions for each rank.
namespace trestle::schedule {

// A path for tensors from one stage to another. The main lane has a route for each pair of
// neighbours; a skip has one for each (value, consuming stage).
struct Route {
  int from_stage = 0;
  int to_stage = 0;
  bool skip = false;
  std::string name = {};  // "main" or the skip's name

  friend bool operator==(const Route&, const Route&) = default;
};

struct Schedule {
  std::string name;  // "gpipe", "1f1b", ...
  int stages = 0;
  int micro_batches = 0;
  std::vector<std::vector<Action>> ranks;  // ranks[r] = the actions of rank r, in order
  std::vector<int> rank_of_stage;          // one for each stage
  std::vector<Route> routes;               // filled by lower(); empty before

  int rank_count() const { return static_cast<int>(ranks.size()); }
  bool lowered() const { return !routes.empty() || stages == 1; }
  friend bool operator==(const Schedule&, const Schedule&) = default;
};

}  // namespace trestle::schedule
