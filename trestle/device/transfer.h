#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/Stream.h>

#include "trestle/device/stream.h"
#include "trestle/device/stream_event.h"

// Copies of tensors between devices.
namespace trestle {

// `tensor` on `device`. Returns the tensor itself if it is undefined or already there, else a copy
// with autograd history (detach the tensor first to avoid it). Between devices with streams the
// copy is queued in both devices' current streams, and later work of either device comes after it.
// A copy to the CPU has finished when this returns.
at::Tensor to_device(const at::Tensor& tensor, at::Device device);

// The same without autograd history, in the streams of `copies`, so that the copy overlaps with the
// computation of both devices. The copy waits for `ready` only (recorded on the tensor's device
// after all work that writes the tensor was queued). The current stream of `device`, or the host if
// `device` is the CPU, waits for the copy. The tensor's own device waits for nothing. The memory of
// both tensors stays valid until the streams that use it are done, even if the tensors are freed
// earlier. Host memory of copies from and to a GPU is pinned.
at::Tensor copy_beside(const at::Tensor& tensor, at::Device device,
                       const device::StreamEvent& ready, device::CopyStreams& copies);

// The same for a tensor that is ready when the work queued in its device's current stream is done.
at::Tensor copy_beside(const at::Tensor& tensor, at::Device device, device::CopyStreams& copies);

// Keeps the memory of `tensor` valid until the work queued in the calling thread's current stream
// is done. For a tensor that was allocated in another stream.
void keep_for_current_stream(const at::Tensor& tensor);

}  // namespace trestle
