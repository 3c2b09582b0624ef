#pragma once

#include <vector>

#include "trestle/device/named_tensors.h"

namespace trestle {

// Without their names.
inline std::vector<at::Tensor> tensors_of(const NamedTensors& named) {
  std::vector<at::Tensor> tensors;
  tensors.reserve(named.size());
  for (const auto& [name, tensor] : named) tensors.push_back(tensor);
  return tensors;
}

}  // namespace trestle
