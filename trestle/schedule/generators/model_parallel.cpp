#include "trestle/schedule/generators/generators.h"
#include "trestle/schedule/table_rows.h"

namespace trestle::schedule::generators {

namespace {

// One micro-batch after the other, each forwards and backwards through the whole model: no two
// ranks run at the same time, and each keeps the activations of one micro-batch.
Schedule make_model_parallel(const GenerateOptions& options) {
  Schedule table = table_in_loop(options);
  for (int stage = 0; stage < options.stages; ++stage) {
    auto& row = table.ranks[static_cast<std::size_t>(stage)];
    for (int i = 0; i < options.micro_batches; ++i) {
      row.push_back(forward(stage, i));
      row.push_back(backward(stage, i));
    }
  }
  return table;
}

}  // namespace

Generator model_parallel_schedule() {
  return {.name = "model_parallel",
          .summary = "one micro-batch at a time; the least memory, and no overlap",
          .make = make_model_parallel};
}

}  // namespace trestle::schedule::generators
