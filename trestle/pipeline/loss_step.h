#pragma once

#include "trestle/pipeline/mini_batch_state.h"

// The loss inside a training step: the boundary between the last stage and its consumer.
namespace trestle::pipeline {

// Of one micro-batch, from its output with its graph; also kept, detached, in the last stage's
// state. A loss that works in place changes neither what step() returns as the output nor the
// caller's target.
at::Tensor micro_batch_loss(MiniBatchState& state, const at::Tensor& output, int micro_batch);

// Of the whole mini-batch, once the last forward is there; its gradient is cut up for the
// micro-batches.
void take_whole_batch_loss(MiniBatchState& state);

}  // namespace trestle::pipeline
