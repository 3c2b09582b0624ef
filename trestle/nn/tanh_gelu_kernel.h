#pragma once

#include <cstdint>

// The arithmetic of tanh_gelu() on plain arrays. Not installed.
namespace trestle::nn {

// y[i] = gelu(x[i])
void tanh_gelu(const float* x, float* y, std::int64_t count);

// into[i] = gradient[i] gelu'(x[i])
void tanh_gelu_backward(const float* x, const float* gradient, float* into, std::int64_t count);

}  // namespace trestle::nn
