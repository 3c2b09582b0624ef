#include "trestle/schedule/placement.h"

#include <algorithm>
#include <iterator>

namespace trestle::schedule {

Schedule place(const Schedule& gpipe, const std::vector<int>& rank_of_stage, int ranks) {
  Schedule result = gpipe;
  result.rank_of_stage = rank_of_stage;
  result.ranks.assign(static_cast<std::size_t>(ranks), {});
  const auto take = [&](int stage, Kind kind) {
    auto& rank = result.ranks[rank_of_stage[stage]];
    std::copy_if(gpipe.ranks[stage].begin(), gpipe.ranks[stage].end(), std::back_inserter(rank),
                 [&](const Action& action) { return action.kind == kind; });
  };
  for (int stage = 0; stage < gpipe.stages; ++stage) take(stage, Kind::Forward);
  for (int stage = gpipe.stages - 1; stage >= 0; --stage) take(stage, Kind::Backward);
  return result;
}

}  // namespace trestle::schedule
