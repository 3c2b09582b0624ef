#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "trestle/nn/loss.h"
#include "trestle/plan/layer_profile.h"

// Not installed.
namespace trestle::train {

// The peak of a loss and its backward, in bytes for each byte of the model's outputs: the outputs
// in one tensor, the targets, and temporaries such as one-hot targets, but not the gradients of the
// outputs. For an additive loss, whose outputs exist already, it is the need beyond them, with
// their gradients: the backward may use the memory of outputs that the loss has not saved. The loss
// runs on `device` with `count` examples like this target, which has no batch dimension, or with
// fewer and an extrapolation. If one example has many outputs, or their sizes are unknown, one
// example's target is cut. `profile`: of `examples` examples. The result is 1 (the outputs alone)
// if the device has no meter, the target is undefined, or the loss refuses these outputs.
double loss_memory(const nn::Loss& loss, const plan::LayerProfile& profile, std::int64_t examples,
                   at::Tensor target, std::int64_t count, at::Device device);

// The seconds of the loss of `examples` examples with its backward, which the last stage's backward
// runs. Measured on `device` with up to four million outputs, and in proportion to them. 0 where
// loss_memory() cannot run the loss.
double loss_seconds(const nn::Loss& loss, const plan::LayerProfile& profile, std::int64_t examples,
                    at::Tensor target, at::Device device);

}  // namespace trestle::train
