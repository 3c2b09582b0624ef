#pragma once

#include <torch/torch.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "trestle/comm/threads/spawn.h"
#include "trestle/nn/layers.h"
#include "trestle/optim/factory.h"
#include "trestle/sharding/sharded.h"

// A training in which every bit counts: float32, odd sizes, a shared weight, dropout, clipping.
namespace trestle::testing {

inline constexpr int pieces = 8;

struct FlattenImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return x.flatten(1); }
};

struct TiedImpl : torch::nn::Module {  // shares the weight of "middle"
  TiedImpl() { weight = register_parameter("weight", torch::randn({37, 37}) * 0.1); }
  at::Tensor forward(const at::Tensor& x) { return torch::linear(x, weight); }
  at::Tensor weight;
};

inline nn::Layers bits_net(double dropout) {
  nn::Layers net(nn::Seed{3});
  net.add("conv", [] { return torch::nn::Conv2d(torch::nn::Conv2dOptions(2, 5, 3).padding(1)); });
  net.add("norm", [] { return torch::nn::GroupNorm(1, 5); });
  net.add("flat", [] { return std::make_shared<FlattenImpl>(); });
  net.add("in", [] { return torch::nn::Linear(5 * 36, 37); });
  net.add("act", [] { return torch::nn::GELU(); });
  net.add("drop", torch::nn::Dropout(dropout));
  net.add("middle", [] { return torch::nn::Linear(37, 37); });
  net.add("tanh", [] { return torch::nn::Tanh(); });
  net.add("tied", [] { return std::make_shared<TiedImpl>(); });
  net.add("out", [] { return torch::nn::Linear(37, 11); });
  net.tie("tied.weight", "middle.weight", &TiedImpl::weight);
  return net;
}

struct BitsTraining {
  ShardOptions options = {};
  optim::OptimizerOptions optimizer = {.name = "adamw", .learning_rate = 0.01, .weight_decay = 0.1};
  double dropout = 0.3;
  int steps = 10;
  double p = 2;  // of the gradient norm
};

inline at::Tensor random(std::vector<std::int64_t> shape, int seed) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(seed);
  return at::randn(shape, generator, at::TensorOptions());
}

// Without ShardOptions::reproducible, no_sync() accumulates the same micro-batches.
inline NamedTensors train_bits(const DeviceMesh& mesh, const World& world,
                               const BitsTraining& training) {
  const bool reproducible = training.options.reproducible.micro_batches > 0;
  Sharded sharded(bits_net(training.dropout), mesh, training.options);
  const auto optimizer = optim::make_optimizer(sharded.parameters(), training.optimizer);
  const int each = pieces / world.size();
  for (int step = 0; step < training.steps; ++step) {
    optimizer->zero_grad();
    const auto xs = random({3 * pieces, 2, 6, 6}, step).chunk(pieces);
    const auto ys = random({3 * pieces, 11}, 100 + step).chunk(pieces);
    for (int piece = world.rank() * each; piece < (world.rank() + 1) * each; ++piece) {
      std::optional<Sharded::NoSync> no_sync;
      if (!reproducible && piece + 1 < (world.rank() + 1) * each)
        no_sync.emplace(sharded.no_sync());
      const auto at = static_cast<std::size_t>(piece);
      const at::Tensor loss = torch::mse_loss(sharded.forward(xs[at]), ys[at]);
      sharded.backward(reproducible ? loss : loss / each);
    }
    sharded.clip_grad_norm(0.1, {.p = training.p});
    optimizer->step();
  }
  return sharded.state();
}

inline bool equal_bits(const NamedTensors& a, const NamedTensors& b) {
  if (a.size() != b.size()) return false;
  for (std::size_t i = 0; i < a.size(); ++i)
    if (a[i].first != b[i].first || !a[i].second.equal(b[i].second)) return false;
  return true;
}

// Trains on thread ranks in a one-dimensional mesh. Returns rank 0's weights.
inline NamedTensors train_bits_on(int ranks, const BitsTraining& training) {
  return spawn(ranks,
               [&](World& world) {
                 const DeviceMesh mesh(world, {{"shard", ranks}});
                 return train_bits(mesh, world, training);
               },
               {.threads = 1})[0];
}

}  // namespace trestle::testing
