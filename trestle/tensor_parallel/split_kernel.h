#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "trestle/device/weight_kernel.h"
#include "trestle/tensor_parallel/split_module.h"

// The operators of split layers. Inside of tensor_parallel. Not installed.
namespace trestle::tensor_parallel {

// For a Product, Convolution or Lookup; `ranks` has the layer's name. `own`: the sizes of this
// rank's slice of the weight. A call with another weight, such as a whole one that torch::load()
// put in its place, throws UsageError.
std::shared_ptr<device::WeightKernel> make_split_kernel(const TensorRanks& ranks, Split split,
                                                        const ModuleFacts& facts,
                                                        std::vector<std::int64_t> own);

}  // namespace trestle::tensor_parallel
