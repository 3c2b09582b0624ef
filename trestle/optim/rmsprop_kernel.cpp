#include "trestle/optim/rmsprop_kernel.h"

#include <cmath>

#include "trestle/base/target_clones.h"

// Compiled without torch and always optimised.
namespace trestle::optim {

namespace {

TRESTLE_CLONES void step_with_momentum(float* __restrict weight, const float* __restrict gradient,
                                       float* __restrict square, float* __restrict buffer,
                                       std::int64_t count, const RmspropNumbers n) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = gradient[i] + n.weight_decay * weight[i];
    square[i] = n.alpha * square[i] + n.rest * g * g;
    buffer[i] = n.momentum * buffer[i] + g / (std::sqrt(square[i]) + n.epsilon);
    weight[i] -= n.rate * buffer[i];
  }
}

TRESTLE_CLONES void step_without_momentum(float* __restrict weight,
                                          const float* __restrict gradient,
                                          float* __restrict square, std::int64_t count,
                                          const RmspropNumbers n) {
  for (std::int64_t i = 0; i < count; ++i) {
    const float g = gradient[i] + n.weight_decay * weight[i];
    square[i] = n.alpha * square[i] + n.rest * g * g;
    weight[i] -= n.rate * (g / (std::sqrt(square[i]) + n.epsilon));
  }
}

}  // namespace

void rmsprop_step(float* weight, const float* gradient, float* square, float* buffer,
                  std::int64_t count, const RmspropNumbers& numbers) {
  if (buffer != nullptr) {
    step_with_momentum(weight, gradient, square, buffer, count, numbers);
  } else {
    step_without_momentum(weight, gradient, square, count, numbers);
  }
}

}  // namespace trestle::optim
