#include "trestle/device/host_memory.h"

#include "trestle/device/virtual/backend.h"
#include "trestle/device/virtual/host_view.h"

namespace trestle {

bool in_host_memory(const at::Tensor& tensor) {
  return tensor.is_cpu() || virt::is_virtual(tensor.device());
}

at::Tensor host_view(const at::Tensor& tensor) {
  if (!tensor.defined() || !virt::is_virtual(tensor.device())) return tensor;
  return virt::HostView(tensor.device().index()).to_host(tensor, virt::Access::write);
}

}  // namespace trestle
