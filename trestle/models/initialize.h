#pragma once

#include <c10/core/Device.h>

#include <cstdint>
#include <utility>

#include "trestle/base/keyed_seed.h"
#include "trestle/device/keyed_random.h"

// Initial weights that depend on (seed, number of the layer) only.
namespace trestle::models {

// Builds the modules of a model, one layer after the other, each with random numbers of its own:
//
//   Initialize initialize(seed);
//   net.add("in", initialize([&] { return torch::nn::Linear(4, 8); }));
//
// A module draws its weights in its constructor, so the constructor is what `make` must call. The
// default generator is neither read nor moved, and a layer's weights do not change when another
// layer is added behind it.
class Initialize {
 public:
  explicit Initialize(std::uint64_t seed) : seed_(seed) {}

  template <class Make>
  auto operator()(Make make) {
    // Step -1: no training step shares these numbers.
    const KeyedRandom random(at::kCPU, keyed_seed(seed_, -1, layer_++, 0));
    return make();
  }

 private:
  std::uint64_t seed_;
  std::int64_t layer_ = 0;
};

}  // namespace trestle::models
