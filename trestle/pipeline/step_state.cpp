#include "trestle/pipeline/step_state.h"

#include <algorithm>

namespace trestle::pipeline {

StepState::StepState(StepInputs the_inputs, const std::vector<Stage>& all_stages,
                     const Cut& the_cut, nn::Boundary& before_the_loss,
                     std::chrono::milliseconds deadline)
    : inputs(std::move(the_inputs)),
      stages(all_stages),
      cut(the_cut),
      loss_boundary(before_the_loss),
      routes(table()),
      channels(the_cut.routes, table().rank_of_stage, table().rank_count(), micro_batches(),
               deadline),
      stage_states(table().stages),
      records(table().rank_count()) {
  for (std::size_t s = 0; s < stage_states.size(); ++s) {
    stage_states[s].micro_batches.resize(micro_batches());
    if (inputs.batch_norm == nn::BatchNormStatistics::WholeBatch)
      stage_states[s].batch_norms.emplace(stages[s].modules());
  }
  last().outputs.resize(micro_batches());
  last().losses.resize(micro_batches());
  for (const auto& rank : table().ranks) {
    for (const auto& action : rank) {
      if (action.kind == schedule::Kind::Recompute)
        at(action.stage, action.micro_batch).recomputed = true;
    }
  }
}

nn::RunKey StepState::key(int micro_batch) const {
  nn::RunKey key = inputs.key;
  key.micro_batch += micro_batch;
  return key;
}

schedule::Timeline StepState::timeline() const {
  schedule::Timeline result;
  result.title = "measured";
  result.stages = table().stages;
  result.micro_batches = micro_batches();
  result.rank_count = table().rank_count();
  result.rank_of_stage = table().rank_of_stage;
  result.routes = table().routes;
  for (const auto& record : records) {
    result.events.insert(result.events.end(), record.events.begin(), record.events.end());
    result.memory.insert(result.memory.end(), record.memory.begin(), record.memory.end());
    Bytes peak = 0;
    for (const auto& sample : record.memory) peak = std::max(peak, sample.bytes);
    result.peak_bytes.push_back(peak);
  }
  return result;
}

}  // namespace trestle::pipeline
