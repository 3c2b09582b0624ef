#pragma once

#include <memory>
#include <utility>

#include "trestle/nn/value.h"
#include "trestle/pipeline/execute/mini_batch_state.h"
#include "trestle/pipeline/execute/partitioned_model.h"
#include "trestle/pipeline/transport/rank_link.h"

namespace trestle::pipeline {

// Pipeline::backward(): the caller's backward of the last forward(). On the last rank libtorch's
// engine runs it (autograd_bridge.h). On all other ranks no output is here, so this class keeps
// what the rank's own stages need.
class CallersBackward {
 public:
  // After forward() on a rank without the last stage. `inputs`: as the caller passed them.
  void expect(nn::Values inputs, std::shared_ptr<MiniBatchState> state) {
    pending_ = {std::move(inputs), std::move(state)};
  }
  // At each forward().
  void clear() { was_dropped_ = std::exchange(pending_, {}).state != nullptr; }

  // On the last rank or in one process, where `link` is null. Throws UsageError for a loss that was
  // not computed from the output of forward(): the other ranks would wait.
  static void run_from_loss(const at::Tensor& loss, const RankLink* link);

  // Elsewhere: runs the backwards of this rank's stages, and the caller's graph before its inputs.
  // Throws StateError without expect().
  void run_stages(PartitionedModel& model);

 private:
  struct Pending {
    nn::Values inputs;
    std::shared_ptr<MiniBatchState> state;
  };
  Pending pending_;
  bool was_dropped_ = false;  // by the last forward()
};

}  // namespace trestle::pipeline
