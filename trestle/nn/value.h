#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace trestle::nn {

// The values on the edges of a model: a tensor, or an undefined tensor for None.
using Value = at::Tensor;
using Values = std::vector<Value>;

}  // namespace trestle::nn
