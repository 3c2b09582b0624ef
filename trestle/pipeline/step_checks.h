#pragma once

#include <cstdint>

#include "trestle/pipeline/pipeline.h"

// What Pipeline::step() refuses before it begins. Inside of the pipeline.
namespace trestle::pipeline {

// step() ends at the pipeline's own inputs: a gradient would not go on to what made them.
void check_history(const nn::Values& inputs, const at::Tensor& target);

// `steps_before`: how many steps were made, for one that goes on with the last of them.
void check_step(const StepOptions& options, std::int64_t steps_before, bool has_optimizers);

// A whole-batch loss needs all outputs before the first backward.
void check_loss(const nn::Loss& loss, const schedule::Schedule& table);

}  // namespace trestle::pipeline
