#pragma once

#include <cstdint>

// The arithmetic of RMSprop on plain arrays. Internal to trestle/optim.
namespace trestle::optim {

struct RmspropNumbers {
  float rate;
  float alpha;
  float rest;  // 1 - alpha, rounded once: alpha in float is too coarse for that where it is near 1
  float epsilon;
  float weight_decay;
  float momentum;
};

// One step for `count` weights. `buffer` holds the momentum and may be null where there is none.
void rmsprop_step(float* weight, const float* gradient, float* square, float* buffer,
                  std::int64_t count, const RmspropNumbers& numbers);

}  // namespace trestle::optim
