#include "trestle/base/counted.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/schedule/generators/generators.h"
#include "trestle/schedule/table_rows.h"

namespace trestle::schedule::generators {

namespace {

// DualPipeV (DeepSeek 2025, "DualPipe"): DualPipe cut in half, two stages on each rank in a V. In
// its middle each forward runs beside a backward of the rank's other stage.
std::vector<Action> dualpipev_row(const std::vector<int>& stages, int rank, int ranks, int count) {
  RowMaker row(stages);
  const int behind = ranks - 1 - rank;
  for (int i = 0; i < 2 * behind; ++i) row.forward(0);
  for (int i = 0; i <= rank; ++i) {
    row.forward(0);
    row.forward(1);
  }
  for (int i = 0; i < behind; ++i) {
    row.input_grad(1);
    row.oldest_weight_grad();
    row.forward(1);
  }
  for (int i = 0; i < count - 2 * ranks + rank + 1; ++i) {
    if (i == 0 && behind == 0) {  // nothing of the last rank's other stage is ready yet
      row.forward(0);
      row.backward(1);
    } else {
      row.overlap(0, 1);
    }
    row.overlap(1, 0);
  }
  for (int i = 0; i < behind; ++i) {
    row.backward(1);
    row.overlap(1, 0);
  }
  // The second half of the last backwards is split. Their W come last.
  for (int i = 0; i < 2 * (rank + 1); ++i) {
    const int chunk = i % 2 == 0 ? 1 : 0;
    i > rank ? row.input_grad(chunk) : row.backward(chunk);
  }
  for (int i = 0; i < behind; ++i) {
    if (row.has_waiting()) row.oldest_weight_grad();
    row.input_grad(0);
  }
  while (row.has_waiting()) row.oldest_weight_grad();
  return row.take();
}

Schedule make_dualpipev(const GenerateOptions& options) {
  Schedule table = table_in_v(options);
  const int ranks = table.rank_count();
  if (options.micro_batches < options.stages)
    throw UsageError(text("schedule 'dualpipev' cannot have ",
                          counted(options.micro_batches, "micro-batch", "micro-batches"), " for ",
                          counted(options.stages, "stage")),
                     {.hint = text("Give at least ", options.stages, ".")});
  for (int rank = 0; rank < ranks; ++rank)
    table.ranks[static_cast<std::size_t>(rank)] =
        dualpipev_row(stages_of(table, rank), rank, ranks, options.micro_batches);
  return table;
}

}  // namespace

Generator dualpipev_schedule() {
  return {.name = "dualpipev",
          .summary = "two stages on each rank in a V: forwards beside backwards",
          .splits_backward = true,
          .sizes = "at least as many micro-batches as stages",
          .stages_per_rank = 2,
          .stage_order = StageOrder::V,
          .make = make_dualpipev};
}

}  // namespace trestle::schedule::generators
