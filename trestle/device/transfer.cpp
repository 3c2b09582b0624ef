#include "trestle/device/transfer.h"

#include <ATen/Functions.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace trestle {
namespace {

// A GPU copies into pinned memory while the host continues; the reader waits for the copy.
at::Tensor to_pinned_host(const at::Tensor& tensor) {
  const at::Tensor host =
      at::empty_like(tensor, tensor.options().device(at::kCPU).pinned_memory(true));
  host.copy_(tensor, /*non_blocking=*/true);
  return host;
}

at::Tensor start_copy(const at::Tensor& tensor, at::Device device) {
  if (tensor.is_cuda() && device.is_cpu()) return to_pinned_host(tensor);
  const bool pin = device.is_cuda() && tensor.is_cpu() && !tensor.is_pinned();
  return to_device(pin ? tensor.pin_memory() : tensor, device);
}

}  // namespace

at::Tensor to_device(const at::Tensor& tensor, at::Device device) {
  if (!tensor.defined() || tensor.device() == device) return tensor;
  // A reader could see host memory before an asynchronous copy has finished.
  const bool asynchronous = !device.is_cpu();
  return tensor.to(tensor.options().device(device), asynchronous, /*copy=*/false);
}

at::Tensor copy_beside(const at::Tensor& tensor, at::Device device,
                       const device::StreamEvent& ready, device::CopyStreams& copies) {
  if (!tensor.defined() || tensor.device() == device) return tensor;
  const at::Device from = tensor.device();
  const at::Tensor source = tensor.detach();
  const auto streams = copies.between(from, device);
  if (streams.empty()) return to_device(source, device);
  at::Tensor copy;
  device::StreamEvent arrived;
  {
    const device::StreamScope in_copy_streams(streams);
    ready.wait(device::is_synchronous(from) ? device : from);
    copy = start_copy(source, device);
    keep_for_current_stream(source);
    arrived.record(device::is_synchronous(device) ? from : device);
  }
  arrived.wait(device);
  keep_for_current_stream(copy);
  return copy;
}

at::Tensor copy_beside(const at::Tensor& tensor, at::Device device, device::CopyStreams& copies) {
  device::StreamEvent ready;
  if (tensor.defined()) ready.record(tensor.device());
  return copy_beside(tensor, device, ready, copies);
}

void keep_for_current_stream(const at::Tensor& tensor) {
  if (!tensor.defined() || device::is_synchronous(tensor.device())) return;
  const c10::impl::VirtualGuardImpl guard(tensor.device().type());
  guard.recordDataPtrOnStream(tensor.storage().data_ptr(), guard.getStream(tensor.device()));
}

}  // namespace trestle
