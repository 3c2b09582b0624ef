#include "trestle/device/transfer.h"

namespace trestle {

at::Tensor to_device(const at::Tensor& tensor, at::Device device) {
  if (!tensor.defined() || tensor.device() == device) return tensor;
  // Into host memory an asynchronous copy could be read before it is there.
  const bool asynchronous = device.is_cuda();
  return tensor.to(tensor.options().device(device), asynchronous, /*copy=*/false);
}

}  // namespace trestle
