#pragma once

#include "attack.h"
#include "trestle/nn/layers.h"

// What join()'s tests train.
namespace trestle::testing {

// TwoLinears in layers, each a unit at level Parameters.
inline nn::Layers in_layers() {
  const auto whole = std::dynamic_pointer_cast<TwoLinears>(make<TwoLinears>());
  nn::Layers net;
  net.add("a", whole->a);
  net.add("tanh", torch::nn::Tanh());
  net.add("b", whole->b);
  return net;
}

}  // namespace trestle::testing
