#pragma once

#include <cstdint>

#include "trestle/pipeline/pipeline.h"

// What Pipeline::step() refuses before it begins. All throw UsageError.
namespace trestle::pipeline {

// Refuses a step under no_grad; a target that needs a gradient, which step() would not give; and
// options that contradict each other. `steps_before`: the number of steps so far.
void check_step(const at::Tensor& target, const StepOptions& step_options,
                const PipelineOptions& options, std::int64_t steps_before);

// Refuses a whole-batch loss, which needs all outputs before the first backward, for a table that
// starts a backward before the last forward.
void check_loss(const nn::Loss& loss, const schedule::Schedule& table);

// For a pipeline without tensor ranks: throws UsageError if its layers are slices, of which it
// would take the norm of this rank's alone.
void refuse_unknown_slices(const nn::ParameterSlices& slices);

}  // namespace trestle::pipeline
