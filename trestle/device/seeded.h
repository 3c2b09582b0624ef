#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <utility>

#include "trestle/device/keyed_random.h"

namespace trestle {

// make(), with random numbers that depend only on the seed. Its module has the weights that the
// same module has after torch::manual_seed(seed) in a program with one thread, bit for bit.
//
//   auto net = trestle::seeded(7, [] { return torch::nn::Linear(20, 3); });
//   at::Tensor x = trestle::seeded(8, [] { return torch::randn({16, 20}); });
//
// Use it instead of torch::manual_seed() wherever several threads make modules or draw numbers: in
// the function of spawn(), in the ranks of a test. torch::manual_seed() seeds one generator of the
// whole process. Threads that seed it and draw from it at the same time take each other's numbers,
// so their modules differ from run to run and from rank to rank.
//
// The numbers are drawn on the CPU. The process's generator is neither read nor changed. Calls
// nest. Layers that nn::Layers holds as factories are made later, outside this call: their seed is
// nn::Seed. Rethrows what make() throws.
template <class Make>
decltype(auto) seeded(std::uint64_t seed, Make&& make) {
  const KeyedRandom random(at::kCPU, seed);
  return std::forward<Make>(make)();
}

}  // namespace trestle
