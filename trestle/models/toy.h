#pragma once

#include <cstdint>

#include "trestle/nn/layers.h"

// Nets small enough for tests and first steps.
namespace trestle::models {

struct ToyOptions {
  std::int64_t features = 12;
  std::int64_t classes = 4;
  std::int64_t width = 16;
  double dropout = 0.1;     // 0 keeps the dropout layers without effect
  std::uint64_t seed = 42;  // of the initial weights (nn/layers.h)
};

// A small net with everything that is hard to cut: a skip that two layers take, a kept input, a
// layer of three arguments and dropout; no batch statistics. Takes [N, features], returns [N,
// classes]. 10 layers: in, tanh1, drop1, mid1, add, tanh2, drop2, mid2, mix, out.
nn::Layers toy(const ToyOptions& options = {});

struct MlpOptions {
  std::int64_t features = 10;
  std::int64_t classes = 5;
  std::int64_t width = 32;
  int depth = 2;            // hidden layers
  std::uint64_t seed = 42;  // of the initial weights (nn/layers.h)
};

// linear1, relu1, ..., out: no skips. Takes [N, ...] with `features` numbers a sample (flattened),
// returns [N, classes].
nn::Layers mlp(const MlpOptions& options = {});

struct TwoLinearsOptions {
  std::int64_t features = 10;
  std::int64_t classes = 5;
  std::int64_t width = 10;
  std::uint64_t seed = 42;  // of the initial weights (nn/layers.h)
};

// The toy model of PyTorch's tutorial on model parallelism, with its names: net1 (linear), relu,
// net2 (linear). Takes [N, features], returns [N, classes].
nn::Layers two_linears(const TwoLinearsOptions& options = {});

}  // namespace trestle::models
