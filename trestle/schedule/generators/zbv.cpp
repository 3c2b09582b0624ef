#include <algorithm>

#include "trestle/schedule/generators/generators.h"
#include "trestle/schedule/table_rows.h"

namespace trestle::schedule::generators {

namespace {

// ZBV (Qi et al. 2024, "Pipeline Parallelism with Controllable Memory"), in the order of
// torch.distributed.pipelining: two stages on each rank in a V, with the memory of 1F1B on its
// first rank. No bubble if F, I and W take the same time and there are at least 2p - 1
// micro-batches.
std::vector<Action> zbv_row(const std::vector<int>& stages, int rank, int ranks, int count) {
  RowMaker row(stages);
  const auto whole = [&row](int chunk) {
    row.input_grad(chunk);
    row.weight_grad(chunk);
  };
  for (int i = 0; i < 2 * (ranks - rank) - 1; ++i) row.forward(0);
  for (int i = 0; i < rank; ++i) {
    row.forward(1);
    row.forward(0);
  }
  for (int i = 0; i < ranks - rank; ++i) {
    row.forward(1);
    whole(1);
  }
  while (row.forwards(1) < count) {
    if (row.forwards(0) < count) row.forward(0);
    whole(0);
    row.forward(1);
    whole(1);
  }
  for (int i = 0; i < rank; ++i) {
    row.input_grad(0);
    row.input_grad(1);
  }
  for (int i = 0; i < ranks - rank; ++i) {
    row.input_grad(0);
    row.weight_grad(0);
  }
  for (int i = 0; i < rank; ++i) row.weight_grad(1);
  while (row.has_waiting()) row.oldest_weight_grad();
  return row.take();
}

// The order needs 2p - 1 micro-batches. Fewer leave their cells empty.
Schedule make_zbv(const GenerateOptions& options) {
  Schedule table = table_in_v(options);
  const int count = options.micro_batches;
  const int ranks = table.rank_count();
  for (int rank = 0; rank < ranks; ++rank) {
    auto& row = table.ranks[static_cast<std::size_t>(rank)];
    row = zbv_row(stages_of(table, rank), rank, ranks, std::max(2 * ranks - 1, count));
    std::erase_if(row, [&](const Action& action) { return action.micro_batch >= count; });
  }
  return table;
}

}  // namespace

Generator zbv_schedule() {
  return {.name = "zbv",
          .summary = "two stages on each rank in a V: no bubble with the memory of 1f1b",
          .splits_backward = true,
          .stages_per_rank = 2,
          .stage_order = StageOrder::V,
          .make = make_zbv};
}

}  // namespace trestle::schedule::generators
