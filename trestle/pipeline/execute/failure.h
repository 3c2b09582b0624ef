#pragma once

#include "trestle/pipeline/execute/mini_batch_state.h"

namespace trestle::pipeline {

// To be called in a catch block: rethrows the current exception, of the same type. Its message
// gains rank, stage, micro-batch and the shapes of the stage's inputs. An out-of-memory error of a
// virtual device gains the layer and the bytes.
[[noreturn]] void rethrow_from(const MiniBatchState& state, int rank,
                               const schedule::Action& action);

}  // namespace trestle::pipeline
