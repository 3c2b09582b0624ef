#include "trestle/pipeline/step_state.h"

#include <algorithm>

namespace trestle::pipeline {

StepState::StepState(schedule::Schedule lowered, const std::vector<Stage>& all_stages,
                     const Cut& the_cut, std::chrono::milliseconds deadline)
    : table(std::move(lowered)),
      stages(all_stages),
      cut(the_cut),
      channels(the_cut.routes, table.rank_of_stage, table.rank_count(), table.micro_batches,
               deadline),
      inputs(table.micro_batches),
      passes(table.stages, std::vector<Pass>(table.micro_batches)),
      recomputed(table.stages, std::vector<bool>(table.micro_batches, false)),
      outputs(table.micro_batches),
      input_gradients(table.stages, std::vector<nn::Values>(table.micro_batches)),
      losses(table.micro_batches),
      activations(table.stages, std::vector<PendingSends>(table.micro_batches)),
      returned(table.stages, std::vector<PendingSends>(table.micro_batches)),
      gradients(table.stages, std::vector<nn::Values>(table.micro_batches)),
      events(table.rank_count()),
      memory(table.rank_count()) {
  for (const auto& rank : table.ranks) {
    for (const auto& action : rank) {
      if (action.kind == schedule::Kind::Recompute)
        recomputed[action.stage][action.micro_batch] = true;
    }
  }
}

schedule::Timeline StepState::timeline() const {
  schedule::Timeline result;
  result.title = "measured";
  result.stages = table.stages;
  result.micro_batches = table.micro_batches;
  result.rank_count = table.rank_count();
  result.rank_of_stage = table.rank_of_stage;
  result.routes = table.routes;
  for (const auto& rank : events)
    result.events.insert(result.events.end(), rank.begin(), rank.end());
  for (const auto& rank : memory) {
    result.memory.insert(result.memory.end(), rank.begin(), rank.end());
    Bytes peak = 0;
    for (const auto& sample : rank) peak = std::max(peak, sample.bytes);
    result.peak_bytes.push_back(peak);
  }
  return result;
}

}  // namespace trestle::pipeline
