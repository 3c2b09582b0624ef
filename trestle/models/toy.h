#pragma once

#include <cstdint>
#include <vector>

#include "trestle/nn/layers.h"
#include "trestle/tensor_parallel/split_plan.h"

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

// A plan of tensor parallelism (tensor_parallel/split_plan.h). Each split layer's output is
// gathered, because dropout and skips follow it.
std::vector<tensor_parallel::SplitRule> toy_plan();

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

// A plan of tensor parallelism: every second linear layer joins the features of the one before it.
// The last layer of an odd number is whole on every rank.
std::vector<tensor_parallel::SplitRule> mlp_plan(const MlpOptions& options = {});

struct TwoLinearsOptions {
  std::int64_t features = 10;
  std::int64_t classes = 5;
  std::int64_t width = 10;
  std::uint64_t seed = 42;  // of the initial weights (nn/layers.h)
};

// The toy model of PyTorch's tutorial on model parallelism, with its names: net1 (linear), relu,
// net2 (linear). Takes [N, features], returns [N, classes].
nn::Layers two_linears(const TwoLinearsOptions& options = {});

// A plan of tensor parallelism: the ranks share the features between the two layers.
std::vector<tensor_parallel::SplitRule> two_linears_plan();

}  // namespace trestle::models
