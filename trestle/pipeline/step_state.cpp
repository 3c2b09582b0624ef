#include "trestle/pipeline/step_state.h"

namespace trestle::pipeline {

StepState::StepState(StepInputs the_inputs, const std::vector<Stage>& all_stages,
                     const Cut& the_cut, nn::Boundary& before_the_loss,
                     device::CopyStreams& copy_streams, device::Clock& the_clock,
                     std::chrono::milliseconds deadline)
    : inputs(std::move(the_inputs)),
      stages(all_stages),
      cut(the_cut),
      loss_boundary(before_the_loss),
      copies(copy_streams),
      routes(table()),
      channels(the_cut.routes, table().rank_of_stage, table().rank_count(), micro_batches(),
               deadline, copy_streams),
      clock(the_clock),
      stage_states(table().stages) {
  record.begin = clock.now();
  record.ranks.resize(table().rank_count());
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

}  // namespace trestle::pipeline
