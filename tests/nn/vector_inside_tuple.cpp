#include "trestle/nn/make_layer.h"

// Must not compile: the number of the tensor after the vector would be unknown.
const trestle::nn::Layer layer = trestle::nn::make_layer("wrong", [](at::Tensor x) {
  return std::tuple(x, std::vector<at::Tensor>{x, x}, x);
});
