#pragma once

#include <cstdint>

#include "trestle/nn/layers.h"

// A net whose costs are known: its layers sleep instead of computing.
namespace benchmarks {

// The seconds that a layer sleeps in a forward; a backward sleeps twice as long. They do not depend
// on the number of cores or on other programs.
struct SleepingCosts {
  double call = 0.002;     // per micro-batch, like the launch of kernels
  double sample = 0.0005;  // per sample
};

// `layers` linear layers with `features` features. With two stages of one layer each, and a batch
// of n in m micro-batches, a step takes 3 (m + 1) (call + sample n / m) seconds. The minimum is at
// m = sqrt(n sample / call).
trestle::nn::Layers sleeping_net(int layers, std::int64_t features,
                                 const SleepingCosts& costs = {});

}  // namespace benchmarks
