#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/cat.h>

#include <string>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/nn/parameter_slice.h"

namespace trestle::testing {

// The slice of a whole parameter, by torch alone.
inline at::Tensor slice_of(const at::Tensor& whole, const nn::ParameterSlice& slice) {
  std::vector<at::Tensor> parts;
  for (const nn::IndexRange& range : slice.ranges)
    parts.push_back(whole.narrow(slice.dimension, range.begin, range.size));
  return at::cat(parts, slice.dimension);
}

inline at::Tensor leaf(const at::Tensor& x) { return x.detach().clone().requires_grad_(true); }

// The message of the UsageError that `call` throws.
template <class Call>
std::string refusal_of(const Call& call) {
  try {
    call();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace trestle::testing
