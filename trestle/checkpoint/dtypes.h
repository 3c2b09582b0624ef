#pragma once

#include <ATen/core/Tensor.h>

#include <string>

// The types of a file of weights, by their names in safetensors. Internal to trestle/checkpoint.
namespace trestle::checkpoint {

// "F32", ... Throws UsageError, naming the tensor, for a type that no such file holds.
std::string dtype_name(const std::string& tensor, at::ScalarType type);

// Of a name that dtype_bytes() knows.
at::ScalarType scalar_type(const std::string& dtype);

// Throws UsageError, naming the tensor, for one that cannot be written: undefined, sparse,
// quantised.
void check_writable(const std::string& name, const at::Tensor& tensor);

}  // namespace trestle::checkpoint
