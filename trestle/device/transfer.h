#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

// Moving tensors between devices.
namespace trestle {

// `tensor` on `device`: itself if it is there already or undefined, else a copy that autograd
// follows back (detach first where that is not wanted). To a CUDA device the copy is asked of
// the current streams and may not have happened yet when this returns: order it with an
// Event. To the CPU it has happened.
at::Tensor to_device(const at::Tensor& tensor, at::Device device);

}  // namespace trestle
