#pragma once

#include <ATen/core/Tensor.h>

#include <string>

// The dtypes of a weights file, by their names in safetensors. Internal to trestle/checkpoint.
namespace trestle::checkpoint {

// "F32", ... Throws UsageError with the tensor's name for a type that such a file cannot hold.
std::string dtype_name(const std::string& tensor, at::ScalarType type);

// For a name that dtype_bytes() accepts.
at::ScalarType scalar_type(const std::string& dtype);

// Throws UsageError with the tensor's name for one that cannot be written: undefined, sparse,
// quantised.
void check_writable(const std::string& name, const at::Tensor& tensor);

}  // namespace trestle::checkpoint
