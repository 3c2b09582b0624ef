#pragma once

#include <ATen/core/Tensor.h>

// Copies that a layer, a kernel and a memory meter cannot tell from the original.
namespace trestle::nn {

// A copy with the same strides, on which the kernels of later operators depend. clone() closes the
// gaps of a view. An expanded tensor, and others whose numbers share memory, get clone()'s strides.
at::Tensor clone_with_strides(const at::Tensor& value);

// A copy on `device` that is a part of as much memory as `value` is.
at::Tensor copy_with_memory(const at::Tensor& value, at::Device device);

}  // namespace trestle::nn
