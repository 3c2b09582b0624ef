#pragma once

#include <cstdint>
#include <vector>

#include "trestle/nn/loss.h"
#include "trestle/pipeline/execute/partitioned_model.h"
#include "trestle/pipeline/execute/stage_optimizer_options.h"
#include "trestle/pipeline/transport/stage_exchange.h"
#include "trestle/simulate/costs.h"

// The costs of the stages, measured by running them.
namespace trestle::pipeline {

// A mini-batch: its micro-batches, each with the target as its last value, and their sizes.
struct ProfiledMiniBatch {
  std::vector<nn::Values> micro_batches;
  std::vector<std::int64_t> sizes;
  bool splits_backward = false;  // the schedule has I and W: measures them too
};

// Runs one micro-batch forwards and backwards through each stage, on the stage's device and worker.
// First one stage after the other, which measures bytes; then all stages at once, as in a step,
// which measures times. Parameters, their grad() and buffers are restored afterwards. Measures the
// first micro-batch, and also the bytes of the last one if that is smaller. A whole-batch loss is
// computed on one copy of the first micro-batch's output for each micro-batch. With `lent_threads`
// > 0 each stage is timed once more, alone and with that number of intra-op threads. NORM and
// STEP are timed with `optimizer`. The costs have the messages of tensor ranks, if their `log` is
// given, without their times.
//
// Over ranks all ranks call it, inside exchange.run(). Each measures its own stages, and all return
// the same costs.
simulate::Costs profile_stages(PartitionedModel& model, const ProfiledMiniBatch& batch,
                               const nn::Loss& loss, StageExchange& exchange,
                               const StageOptimizerOptions& optimizer = {}, int lent_threads = 0,
                               MessageLog* log = nullptr);

// Makes I the whole backward of each stage, and W nothing (StageHooks::can_split_backward()).
void put_backwards_into_input_grads(simulate::Costs& costs);

}  // namespace trestle::pipeline
