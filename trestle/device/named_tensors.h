#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

namespace trestle {

// Tensors and their names, in a meaningful order: parameters and buffers in the order of the
// layers, the contents of a file in the order of the file.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

inline std::vector<at::Tensor> without_names(const NamedTensors& named) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(named.size());
  for (const auto& [name, tensor] : named) tensors.push_back(tensor);
  return tensors;
}

}  // namespace trestle
