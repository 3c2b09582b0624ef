#pragma once

#include <ATen/core/Tensor.h>

namespace trestle::sharding {

// Frees the memory of a tensor's storage, and makes it anew (not written to), while every tensor on the storage stays as it
// is. Meanwhile to use one of them throws, with the message. On the tensor's own device.
void free_storage(const at::Tensor& tensor, const char* message);
void make_storage(const at::Tensor& tensor);

}  // namespace trestle::sharding
