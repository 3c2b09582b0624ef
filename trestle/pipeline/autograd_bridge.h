#pragma once

#include <memory>

#include "trestle/pipeline/mini_batch_state.h"
#include "trestle/pipeline/partitioned_model.h"

namespace trestle::pipeline {

// Ties the pipeline's backward half to the caller's own backward: returns the model's outputs
// (merged, on the last device) as the results of one autograd function of `inputs`, whose backward
// runs the step's B actions. Outputs that want no gradient have no history.
//
// Two nodes do it. The first sits on the last device, keeps the gradients and passes a CPU scalar
// on; the second therefore runs in the thread that called backward(), which may wait for the
// workers. An autograd device thread must not: if backward() was itself called from one, the second
// node runs all stages there, one after the other.
nn::Values attach_backward(const nn::Values& inputs, std::shared_ptr<MiniBatchState> state,
                           std::shared_ptr<PartitionedModel> model);

// The gradient of each of the caller's inputs that wants one, after the B actions: summed over the
// stages that used it, put together from the micro-batches.
nn::Values input_gradients(const MiniBatchState& state);

// Is the calling thread one of autograd's own, which serve one device each? libtorch tells only by
// the thread's name.
bool on_autograd_device_thread();

}  // namespace trestle::pipeline
