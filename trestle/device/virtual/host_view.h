#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/SmallVector.h>

#include <vector>

#include "trestle/device/virtual/backend.h"
#include "trestle/device/virtual/stream_order.h"

namespace trestle::virt {

enum class Access { read, write };

// Converts tensors between a virtual device and the CPU without copying a byte. One object serves
// one operator call: storages shared by arguments stay shared, and results that alias arguments
// alias them on the device too.
//
//   HostView view(device);
//   at::Tensor host = view.to_host(argument, Access::write);
//   at::Tensor host_result = host.add_(1);              // the CPU kernel
//   view.write_back();                                  // resized outputs
//   at::Tensor result = view.to_device(host_result);
class HostView {
 public:
  explicit HostView(int device) : device_(device) {}

  // A CPU tensor over the same memory. CPU tensors and undefined ones are returned as they are.
  at::Tensor to_host(const at::Tensor& tensor, Access access);

  // Applies the kernel's changes of shapes and storages (out= arguments, resize_) to the device
  // tensors.
  void write_back();

  // A kernel's result as a tensor of the device: the argument itself if it is one, a view if it is
  // a view of one, else its memory taken over. CPU arguments among the results stay on the CPU.
  at::Tensor to_device(const at::Tensor& result);

  // The device memory of the arguments, and how the kernel accessed it.
  std::vector<BlockAccess> accesses() const;

 private:
  struct Storage {
    c10::StorageImpl* device;
    c10::Storage host;
  };
  struct Argument {
    at::Tensor device;
    at::Tensor handed_over;  // may be moved from or swapped by the kernel...
    c10::TensorImpl* host;   // ...so identity is by this pointer; kept alive by the copy above
    Access access;
  };
  const c10::Storage& host_storage(c10::StorageImpl* device_storage);
  c10::Storage device_storage(const at::Tensor& result);

  int device_;
  c10::SmallVector<Storage, 6> storages_;
  c10::SmallVector<Argument, 8> arguments_;
  // CPU tensors the caller passed, mostly scalars.
  c10::SmallVector<const c10::StorageImpl*, 4> host_arguments_;
};

}  // namespace trestle::virt
