#pragma once

#include <cstdint>

#include "trestle/nn/layers.h"

// A net whose costs are known: its layers sleep instead of computing.
namespace benchmarks {

// Seconds that a layer sleeps in a forward; a backward sleeps twice as long. Cores that other programs
// use do not change them, nor does it matter how many there are.
struct SleepingCosts {
  double call = 0.002;     // for each micro-batch, as starting kernels costs
  double sample = 0.0005;  // for each of its samples
};

// `layers` linear layers of `features` numbers. A step of one micro-batch after the other on two
// stages with a layer each, in m pieces of a batch of n, takes 3 (m + 1) (call + sample n / m) seconds:
// least where m is the root of n sample / call.
trestle::nn::Layers sleeping_net(int layers, std::int64_t features,
                                 const SleepingCosts& costs = {});

}  // namespace benchmarks
