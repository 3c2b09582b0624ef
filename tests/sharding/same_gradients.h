#pragma once

#include <torch/torch.h>

#include <memory>
#include <optional>
#include <string>

#include "tests/sharding/layered_net.h"
#include "trestle/precision/autocast.h"
#include "trestle/recompute/checkpoint.h"

// Compares gradients over ranks with plain libtorch: any level, with and without recomputation, in
// float32 and bfloat16.
namespace trestle::testing {

struct ResidualImpl : torch::nn::Module {
  explicit ResidualImpl(bool recomputes = false) : recomputes(recomputes) {
    a = register_module("a", torch::nn::Linear(6, 9));
    b = register_module("b", torch::nn::Linear(9, 6));
  }
  at::Tensor forward(const at::Tensor& x) {
    const auto inner = [this](const at::Tensor& y) { return b(torch::tanh(a(y))); };
    return x + (recomputes ? nn::checkpoint(inner, x) : inner(x));
  }
  torch::nn::Linear a{nullptr}, b{nullptr};
  bool recomputes;
};

inline nn::Layers residual_layers(bool recompute) {
  nn::Layers net(nn::Seed{9});
  for (int i = 0; i < 3; ++i)
    net.add("block" + std::to_string(i), [=] { return std::make_shared<ResidualImpl>(recompute); });
  return net;
}

struct SameGradientsCase {
  bool recompute = false, bfloat16 = false;
};

inline constexpr int all_rows = 24;
inline at::Tensor matrix_rows(std::uint64_t seed) { return rows(all_rows, seed).to(at::kFloat); }

// The gradients of plain libtorch. In float32: of the whole batch. In bfloat16: each rank's share
// of the batch, summed in float32, either with cast weights or under autocast.
inline Gradients plain_gradients(int ranks, bool bfloat16, bool autocast) {
  std::vector<std::shared_ptr<ResidualImpl>> net;
  Gradients sums;
  const NamedTensors weights = residual_layers(false).named_parameters();
  const int parts = bfloat16 ? ranks : 1;
  const auto type = bfloat16 && !autocast ? at::kBFloat16 : at::kFloat;
  for (int part = 0; part < parts; ++part) {
    Gradients leaves;
    at::Tensor y = matrix_rows(1).chunk(parts)[static_cast<std::size_t>(part)].to(type);
    std::optional<precision::Autocast> scope;
    if (bfloat16 && autocast) scope.emplace(Precision::BFloat16);
    for (const auto& [name, tensor] : weights)
      leaves[name] = tensor.detach().to(type).clone().requires_grad_();
    for (const std::string block : {"block0.", "block1.", "block2."}) {
      const at::Tensor inner =
          torch::tanh(torch::linear(y, leaves[block + "a.weight"], leaves[block + "a.bias"]));
      y = y + torch::linear(inner, leaves[block + "b.weight"], leaves[block + "b.bias"]);
    }
    const at::Tensor target = matrix_rows(2).chunk(parts)[static_cast<std::size_t>(part)];
    const at::Tensor loss = loss_of(y.to(at::kFloat), target);
    scope.reset();
    loss.backward();
    for (const auto& [name, leaf] : leaves) {
      const at::Tensor gradient = leaf.grad().to(at::kFloat) / parts;
      sums[name] = sums[name].defined() ? sums[name] + gradient : gradient;
    }
  }
  return sums;
}

// Two steps at each level: the first step determines the buckets and the order of units.
inline void expect_same_gradients(const World& world, const DeviceMesh& mesh,
                                  const SameGradientsCase& given) {
  const NamedTensors shapes = residual_layers(false).named_parameters();
  const auto part = [&](std::uint64_t seed) {
    return matrix_rows(seed).chunk(world.size())[static_cast<std::size_t>(world.rank())];
  };
  for (const ShardLevel level : levels) {
    SCOPED_TRACE(std::string(to_string(level)));
    const bool autocast = level == ShardLevel::None;  // level None keeps no master weights
    const Gradients expected = plain_gradients(world.size(), given.bfloat16, autocast);
    ShardOptions options{.level = level, .buckets = {.size = 256, .first = 128}};
    if (given.bfloat16 && !autocast)
      options.precision = {.parameters = at::kBFloat16, .reduce = at::kFloat, .output = at::kFloat};
    Sharded sharded(residual_layers(given.recompute), mesh, options);
    for (int step = 0; step < 2; ++step) {
      sharded.zero_grad();
      std::optional<precision::Autocast> scope;
      if (given.bfloat16 && autocast) scope.emplace(Precision::BFloat16);
      const at::Tensor loss = loss_of(sharded.forward(part(1)).to(at::kFloat), part(2));
      scope.reset();
      sharded.backward(loss);
      EXPECT_LT(difference(expected, whole_gradients(sharded, world, shapes)), 2e-7);
    }
  }
}

}  // namespace trestle::testing
