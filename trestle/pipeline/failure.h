#pragma once

#include "trestle/pipeline/mini_batch_state.h"

namespace trestle::pipeline {

// Called in a catch block: throws the current exception again, of the same type, with the place
// added to its message: rank, stage, micro-batch, shapes of what came in. An out-of-memory error of
// a virtual device gets the layer and the numbers.
[[noreturn]] void rethrow_from(const MiniBatchState& state, int rank,
                               const schedule::Action& action);

}  // namespace trestle::pipeline
