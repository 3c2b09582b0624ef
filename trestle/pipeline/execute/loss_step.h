#pragma once

#include "trestle/pipeline/execute/mini_batch_state.h"

// The loss of a training step, computed from the last stage's outputs.
namespace trestle::pipeline {

// The loss of one micro-batch, from its output with its graph. Also stored, detached, in the last
// stage's state. A loss that works in place changes neither the output that step() returns nor the
// caller's target.
at::Tensor micro_batch_loss(MiniBatchState& state, const at::Tensor& output, int micro_batch);

// The loss of the whole mini-batch, after the last forward, and its gradient for each micro-batch.
void compute_whole_batch_loss(MiniBatchState& state);

}  // namespace trestle::pipeline
