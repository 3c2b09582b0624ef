#include <vector>

#include "trestle/schedule/generators/generators.h"
#include "trestle/schedule/table_rows.h"

namespace trestle::schedule::generators {

namespace {

// Breadth-first pipeline parallelism (Lamy-Poirier 2022): all micro-batches in one stage of a rank,
// then all in its next stage. With one stage on each rank it is GPipe.
Schedule make_looped_bfs(const GenerateOptions& options) {
  Schedule table = table_in_loop(options);
  const int count = options.micro_batches;
  const bool reverse = options.backward_order == BackwardOrder::Reverse;
  for (int rank = 0; rank < table.rank_count(); ++rank) {
    const std::vector<int> stages = stages_of(table, rank);
    auto& row = table.ranks[static_cast<std::size_t>(rank)];
    for (const int stage : stages)
      for (int i = 0; i < count; ++i) row.push_back(forward(stage, i));
    for (const int stage : std::vector<int>(stages.rbegin(), stages.rend()))
      for (int i = 0; i < count; ++i) row.push_back(backward(stage, reverse ? count - 1 - i : i));
  }
  return table;
}

}  // namespace

Generator looped_bfs_schedule() {
  return {.name = "looped_bfs",
          .summary = "gpipe with several stages on each rank; allows a whole-batch loss",
          .all_forwards_first = true,
          .stages_per_rank = 0,
          .make = make_looped_bfs};
}

}  // namespace trestle::schedule::generators
