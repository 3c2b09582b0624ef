#pragma once

#include <ATen/core/Tensor.h>

namespace trestle {

// The same memory as a tensor of the CPU, for code that knows only CPU tensors, such as a network's:
// of a virtual device's tensor a view that keeps its memory alive and copies nothing, so that budgets
// and meters stay as they are; a CPU tensor is itself, and so is a GPU's. Reading and writing are the
// caller's to order: a StreamCheck does not see them.
at::Tensor host_view(const at::Tensor& tensor);

}  // namespace trestle
