#pragma once

#include <cstdint>

// The arithmetic of RMSprop on plain arrays. Not installed.
namespace trestle::optim {

struct RmspropNumbers {
  float rate;
  float alpha;
  float rest;  // 1 - alpha, computed in double: float is too coarse near 1
  float epsilon;
  float weight_decay;
  float momentum;
};

// One step for `count` weights. `buffer` holds the momentum; it may be null without momentum.
void rmsprop_step(float* weight, const float* gradient, float* square, float* buffer,
                  std::int64_t count, const RmspropNumbers& numbers);

}  // namespace trestle::optim
