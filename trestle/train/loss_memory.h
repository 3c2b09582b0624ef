#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "trestle/nn/loss.h"
#include "trestle/plan/layer_profile.h"

// Not installed.
namespace trestle::train {

// What a whole-batch loss and its backward need at their peak, in bytes for each byte of the
// model's outputs: the outputs in one tensor, and temporaries such as one-hot targets. Without the
// gradients of the outputs, with the targets. Measured on `device` with one example's target, of
// which large ones are cut; `target` has no batch dimension. 1 (the outputs alone) if the device
// has no meter, the target is undefined, or the loss does not take the output that the profile has
// for `examples` examples.
double loss_memory(const nn::Loss& loss, const plan::LayerProfile& profile, std::int64_t examples,
                   at::Tensor target, at::Device device);

}  // namespace trestle::train
