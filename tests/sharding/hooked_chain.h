#pragma once

#include <functional>
#include <memory>

#include "attack_ranks.h"
#include "trestle/recompute/checkpoint.h"
#include "trestle/sharding/hooks/hooked.h"

// Torch modules with hooked units.
namespace trestle::testing {

template <class Impl>
using Plain = Impl;

struct BlockImpl : torch::nn::Module {
  explicit BlockImpl(int inner) {
    a = register_module("a", torch::nn::Linear(width, inner));
    b = register_module("b", torch::nn::Linear(inner, width));
  }
  at::Tensor forward(const at::Tensor& x) {
    if (on_forward) on_forward();
    return x + b(torch::tanh(a(x)));
  }
  torch::nn::Linear a{nullptr}, b{nullptr};
  std::function<void()> on_forward;
};

// Blocks with a head. A test can run code in a block's forward.
template <template <class> class Unit>
struct Chain : Model {
  Chain() {
    for (int i = 0; i < 4; ++i) blocks->push_back(std::make_shared<Unit<BlockImpl>>(5 + i));
    register_module("blocks", blocks);
    head = register_module("head", torch::nn::Linear(width, 3));
    to(at::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) override {
    at::Tensor y = x;
    const auto run = [this](const at::Tensor& z) { return blocks->forward(z); };
    y = recomputes ? nn::checkpoint(run, y) : run(y);
    return leaves_head_out ? y : head(y);
  }
  BlockImpl& block(std::size_t i) { return dynamic_cast<BlockImpl&>(*blocks->ptr(i)); }
  torch::nn::Sequential blocks;
  torch::nn::Linear head{nullptr};
  bool recomputes = false, leaves_head_out = false;
};
// Hooked has a second parameter, which clang counts.
template <class Impl>
using HookedUnit = Hooked<Impl>;
using HookedChain = Chain<HookedUnit>;

inline std::shared_ptr<HookedChain> hooked_chain() {
  return std::static_pointer_cast<HookedChain>(make<HookedChain>());
}

}  // namespace trestle::testing
