#pragma once

#include <ATen/core/Tensor.h>

#include "trestle/base/counter_random.h"
#include "trestle/nn/parameter_slice.h"

// Initial weights that are drawn by index: a rank draws its slice alone, and 1, 2 or 4 ranks begin
// with the same bits.
namespace trestle::nn {

// fp32 on the CPU, of the slice's shape. The element with flat index i in the whole parameter,
// counted in the order of a contiguous tensor, is `deviation` times random.normal(i).
at::Tensor draw_normal(const CounterRandom& random, const ParameterSlice& slice, double deviation);
// The same for uniform numbers from -bound to bound.
at::Tensor draw_uniform(const CounterRandom& random, const ParameterSlice& slice, double bound);

// The slice that is the whole parameter.
ParameterSlice whole_parameter(std::vector<std::int64_t> sizes);

}  // namespace trestle::nn
