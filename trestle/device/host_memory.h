#pragma once

#include <ATen/core/Tensor.h>

namespace trestle {

// Whether the CPU can read the tensor's memory: that of the CPU or of a virtual device.
bool in_host_memory(const at::Tensor& tensor);

// The tensor's memory as a CPU tensor, for code that handles only CPU tensors, such as network
// communication. For a virtual device's tensor this is a view that keeps its memory alive and
// copies nothing, so budgets and meters do not change. A CPU or GPU tensor is returned as it is.
// The caller must order its reads and writes: a StreamCheck does not see them.
at::Tensor host_view(const at::Tensor& tensor);

}  // namespace trestle
