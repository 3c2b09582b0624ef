#pragma once

#include <ATen/core/Tensor.h>

namespace trestle::sharding {

// Free and allocate the memory of a tensor's storage, on its device. All tensors on the storage
// keep their objects, shapes and strides. While the memory is free, any use of them throws
// `message`. Allocated memory is not initialised.
void free_storage(const at::Tensor& tensor, const char* message);
void allocate_storage(const at::Tensor& tensor);

}  // namespace trestle::sharding
