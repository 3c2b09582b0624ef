#pragma once

#include <algorithm>
#include <string>
#include <vector>

#include "trestle/schedule/action.h"
#include "trestle/schedule/csv.h"
#include "trestle/schedule/generate.h"
#include "trestle/schedule/routes.h"
#include "trestle/schedule/schedule.h"

// Tables that several tests use and no generator makes.
namespace trestle::schedule::tables {

// Rows of actions separated by blanks, one string for each rank.
inline Schedule from_rows(const std::vector<std::string>& rows) {
  std::string csv;
  for (std::string row : rows) {
    for (char& c : row) c = c == ' ' ? ',' : c;
    csv += row + "\n";
  }
  return parse_csv(csv, "table");
}

// Two stages on each rank: rank r has r and r + ranks (looped) or r and 2 * ranks - 1 - r (V). Each
// rank runs the forwards of one stage after the other, then the backwards in reverse.
enum class Placement { Looped, V };
inline Schedule two_stages_per_rank(Placement placement, int ranks, int micro_batches) {
  Schedule schedule;
  schedule.name = placement == Placement::V ? "v" : "looped";
  schedule.stages = 2 * ranks;
  schedule.micro_batches = micro_batches;
  schedule.ranks.resize(static_cast<std::size_t>(ranks));
  schedule.rank_of_stage.resize(static_cast<std::size_t>(2 * ranks));
  for (int rank = 0; rank < ranks; ++rank) {
    const int second = placement == Placement::V ? 2 * ranks - 1 - rank : rank + ranks;
    auto& actions = schedule.ranks[static_cast<std::size_t>(rank)];
    for (const int stage : {rank, second}) {
      schedule.rank_of_stage[static_cast<std::size_t>(stage)] = rank;
      for (int i = 0; i < micro_batches; ++i) actions.push_back(forward(stage, i));
    }
    for (const int stage : {second, rank}) {
      for (int i = 0; i < micro_batches; ++i) actions.push_back(backward(stage, i));
    }
  }
  return schedule;
}

// A table of a known schedule on this many ranks, with the stages per rank that it needs, or with
// `chunks`. A schedule that needs more micro-batches gets one for each stage.
inline Schedule table_on_ranks(const ScheduleInfo& info, int ranks, int micro_batches,
                               int chunks = 1, BackwardOrder order = BackwardOrder::Reverse) {
  const int per_rank = info.stages_per_rank > 0 ? info.stages_per_rank : chunks;
  const int stages = ranks * per_rank;
  const bool needs_more = info.sizes.starts_with("at least");
  return generate(info.name,
                  {.stages = stages,
                   .micro_batches = needs_more ? std::max(stages, micro_batches) : micro_batches,
                   .backward_order = order,
                   .stages_per_rank = per_rank});
}

// The routes of a model with a main lane between all neighbours, and these skips.
inline std::vector<Route> with_skips(int stages, const std::vector<Route>& skips) {
  std::vector<Route> routes = main_lane(stages);
  routes.insert(routes.end(), skips.begin(), skips.end());
  return routes;
}

}  // namespace trestle::schedule::tables
