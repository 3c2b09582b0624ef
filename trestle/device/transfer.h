#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "trestle/device/event.h"
#include "trestle/device/stream.h"

// Moving tensors between devices.
namespace trestle {

// `tensor` on `device`: itself if it is there already or undefined, else a copy that autograd
// follows back (detach first where that is not wanted). Between devices with streams it is asked of
// both devices' current streams, and what either is asked for next comes after it. To the CPU it has
// happened when this returns.
at::Tensor to_device(const at::Tensor& tensor, at::Device device);

// The same, without history and beside the computation of both devices: in streams of `copies`. It
// waits for `ready` (recorded on the tensor's device when all that writes it had been asked for)
// and for nothing else; the current stream of `device`, or the host if that is the CPU, waits for
// the copy; the tensor's own device waits for nothing. Both tensors' memory stays until the streams
// that use it are done, whoever lets go of them. From and to a GPU, host memory is pinned.
at::Tensor copy_beside(const at::Tensor& tensor, at::Device device, const device::Event& ready,
                       device::CopyStreams& copies);

// The same, of a tensor that is ready when the current stream of its device has done what it was
// asked for so far.
at::Tensor copy_beside(const at::Tensor& tensor, at::Device device, device::CopyStreams& copies);

// The memory of `tensor` stays until the calling thread's current stream of its device has done what
// it was asked for so far: for a tensor that was made in another stream.
void keep_for_current_stream(const at::Tensor& tensor);

}  // namespace trestle
