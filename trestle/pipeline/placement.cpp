#include "trestle/pipeline/placement.h"

#include <algorithm>
#include <iterator>

namespace trestle::pipeline {

schedule::Schedule place(const schedule::Schedule& gpipe, const schedule::Schedule& other) {
  schedule::Schedule result = gpipe;
  result.rank_of_stage = other.rank_of_stage;
  result.ranks.assign(other.ranks.size(), {});
  const auto take = [&](int stage, schedule::Kind kind) {
    auto& rank = result.ranks[other.rank_of_stage[stage]];
    std::copy_if(gpipe.ranks[stage].begin(), gpipe.ranks[stage].end(), std::back_inserter(rank),
                 [&](const schedule::Action& action) { return action.kind == kind; });
  };
  for (int stage = 0; stage < gpipe.stages; ++stage) take(stage, schedule::Kind::Forward);
  for (int stage = gpipe.stages - 1; stage >= 0; --stage) take(stage, schedule::Kind::Backward);
  return result;
}

}  // namespace trestle::pipeline
