#include "trestle/nn/make_layer.h"

// Must not compile: which number would the tensor behind the vector have?
const trestle::nn::Layer layer = trestle::nn::make_layer("wrong", [](at::Tensor x) {
  return std::tuple(x, std::vector<at::Tensor>{x, x}, x);
});
