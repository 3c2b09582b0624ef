#pragma once

#include <memory>

#include "trestle/device/weight_kernel.h"
#include "trestle/tensor_parallel/split_module.h"

// The operators of split layers. Inside of tensor_parallel. Not installed.
namespace trestle::tensor_parallel {

// For a Product, Convolution or Lookup; `ranks` has the layer's name.
std::shared_ptr<device::WeightKernel> make_split_kernel(const TensorRanks& ranks, Split split,
                                                        const ModuleFacts& facts);

}  // namespace trestle::tensor_parallel
