#include "trestle/pipeline/execute/mini_batch_state.h"

#include <numeric>

namespace trestle::pipeline {

MiniBatchState::MiniBatchState(StepInputs the_inputs, const StageList& the_stages,
                               const Cut& the_cut, nn::Boundary& before_the_loss,
                               device::CopyStreams& copy_streams, device::Clock& the_clock,
                               std::unique_ptr<StageTransport> the_transport)
    : inputs(std::move(the_inputs)),
      stages(the_stages),
      cut(the_cut),
      loss_boundary(before_the_loss),
      copies(copy_streams),
      routes(table()),
      transport(std::move(the_transport)),
      clock(the_clock),
      stage_states(table().stages) {
  record.begin = clock.now();
  record.ranks.resize(table().rank_count());
  for (std::size_t s = 0; s < stage_states.size(); ++s) {
    stage_states[s].micro_batches.resize(micro_batches());
    if (inputs.batch_norm == nn::BatchNormStatistics::WholeBatch && stages.has(static_cast<int>(s)))
      stage_states[s].batch_norms.emplace(stages[static_cast<int>(s)].modules());
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

nn::RunKey MiniBatchState::key(int micro_batch) const {
  nn::RunKey key = inputs.key;
  key.micro_batch += micro_batch;
  const auto earlier = inputs.sizes.begin() + micro_batch;
  key.example = std::accumulate(inputs.sizes.begin(), earlier, key.example);
  return key;
}

}  // namespace trestle::pipeline
