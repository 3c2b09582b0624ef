#pragma once

#include "attack.h"
#include "trestle/nn/layers.h"

// The net that the tests of join() train.
namespace trestle::testing {

// TwoLinears as layers; at level Parameters each layer is a unit.
inline nn::Layers in_layers() {
  const auto whole = std::dynamic_pointer_cast<TwoLinears>(make<TwoLinears>());
  nn::Layers net;
  net.add("a", whole->a);
  net.add("tanh", torch::nn::Tanh());
  net.add("b", whole->b);
  return net;
}

}  // namespace trestle::testing
