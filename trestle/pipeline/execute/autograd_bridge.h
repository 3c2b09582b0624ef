#pragma once

#include <memory>
#include <vector>

#include "trestle/pipeline/execute/mini_batch_state.h"
#include "trestle/pipeline/execute/partitioned_model.h"

namespace trestle::pipeline {

// Connects the pipeline's backwards to the caller's own backward. Returns the model's outputs
// (merged, on the last device) as the results of one autograd function of `inputs`, whose backward
// runs the step's B actions. Outputs that need no gradient have no grad_fn.
//
// The function has two nodes. The first, on the last device, keeps the gradients and passes on a
// CPU scalar. The second is therefore a CPU node, and runs in the thread that called backward(),
// which may wait for the workers. An autograd device thread must not wait: if backward() was called
// from one, the second node runs all stages there, one after the other.
nn::Values attach_backward(const nn::Values& inputs, std::shared_ptr<MiniBatchState> state,
                           std::shared_ptr<PartitionedModel> model);

// The gradients of the caller's inputs, after the B actions; None for an input that needs none.
// Each is summed over the stages that used it, and concatenated over micro-batches.
nn::Values input_gradients(const MiniBatchState& state);

// [input of the model] whether it needs a gradient.
std::vector<bool> need_gradients(const nn::Values& inputs);

// After the B actions of a call without a graph of its own: gives the caller's inputs that need
// gradients theirs, times `scale`, as backward() would. Their graphs, if they have some, are freed.
void pass_on_input_gradients(const nn::Values& inputs, const MiniBatchState& state,
                             double scale = 1);

// Whether the calling thread is an autograd device thread. Only the thread's name tells.
bool on_autograd_device_thread();

}  // namespace trestle::pipeline
