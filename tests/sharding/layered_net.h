#pragma once

#include <torch/torch.h>

#include <functional>
#include <initializer_list>
#include <map>
#include <memory>
#include <string>

#include "tests/sharding/rows.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/nn/layers.h"
#include "trestle/sharding/sharded.h"

// Trains a model with a skip, an in-place layer and a shared weight, at each level over ranks.
namespace trestle::testing {

using Gradients = std::map<std::string, at::Tensor>;

struct JoinImpl : torch::nn::Module {  // joins a skip
  JoinImpl() { fc = register_module("fc", torch::nn::Linear(12, 6)); }
  at::Tensor forward(const at::Tensor& x, const at::Tensor& skip) {
    return fc(torch::cat({x, skip}, 1));
  }
  torch::nn::Linear fc{nullptr};
};

struct HeadImpl : torch::nn::Module {  // shares the weight of "embed"
  HeadImpl() { weight = register_parameter("weight", torch::randn({6, 6})); }
  at::Tensor forward(const at::Tensor& x) { return torch::linear(x, weight); }
  at::Tensor weight;
};

// Layers are factories, so that all ranks create the same ones.
inline nn::Layers make_layered_net(double dropout = 0, bool tied = true) {
  nn::Layers net(nn::Seed{3});
  const auto linear = [](int in, int out) {
    return [=] {
      torch::nn::Linear layer(in, out);
      layer->to(torch::kDouble);
      return layer;
    };
  };
  net.add("embed", linear(6, 6));
  net.add("act", [] { return torch::nn::ReLU(torch::nn::ReLUOptions(true)); }).keep_output("s");
  net.add("middle", linear(6, 9));
  if (dropout > 0) net.add("drop", torch::nn::Dropout(dropout));
  net.add("down", linear(9, 6));
  net.add("join",
          [] {
            auto join = std::make_shared<JoinImpl>();
            join->to(torch::kDouble);
            return join;
          })
      .take("s");
  net.add("head", [] {
    auto head = std::make_shared<HeadImpl>();
    head->to(torch::kDouble);
    return head;
  });
  if (tied) net.tie("head.weight", "embed.weight", &HeadImpl::weight);
  return net;
}

inline at::Tensor loss_of(const at::Tensor& y, const at::Tensor& target) {
  return (y - target).square().mean();
}

inline Gradients gradients_of(const NamedTensors& parameters) {
  Gradients gradients;
  for (const auto& [name, tensor] : parameters) gradients[name] = tensor.grad();
  return gradients;
}

// The whole gradients of a sharded model, all-gathered from each rank's shards.
inline Gradients whole_gradients(Sharded& sharded, const World& world, const NamedTensors& shapes) {
  Gradients gradients;
  for (const auto& [name, shard] : sharded.named_parameters()) {
    const at::Tensor own = shard.grad().defined() ? shard.grad() : at::zeros_like(shard);
    if (sharded.options().level == ShardLevel::None) {
      gradients[name] = shard.grad().defined() ? own.clone() : at::Tensor();
      continue;
    }
    const auto parts = world.group().all_gather_uneven(own.reshape(-1));
    for (const auto& [known, tensor] : shapes)
      if (known == name) gradients[name] = torch::cat(parts).view(tensor.sizes());
  }
  return gradients;
}

inline double difference(const Gradients& expected, const Gradients& actual) {
  double worst = expected.size() == actual.size() ? 0 : 1e9;
  for (const auto& [name, tensor] : actual) {
    const at::Tensor& other = expected.at(name);
    if (!other.defined() || !tensor.defined()) {
      if (tensor.defined() && tensor.abs().max().item<double>() > 0) worst = 1e9;
      continue;
    }
    worst = std::max(worst, (tensor - other).abs().max().item<double>());
  }
  return worst;
}

// Runs `body(world, sharded, net)` at each level on `ranks` ranks.
inline void at_each_level(int ranks, const std::function<nn::Layers()>& make, ShardOptions options,
                          const std::function<void(World&, Sharded&, const nn::Layers&)>& body) {
  for (const ShardLevel level : levels) {
    SCOPED_TRACE(std::string(to_string(level)));
    options.level = level;
    options.buckets.size = options.buckets.first = 256;
    spawn(ranks, [&](World& world) {
      const DeviceMesh mesh(world, {{"shard", ranks}});
      const nn::Layers net = make();
      Sharded sharded(net, mesh, options);
      body(world, sharded, net);
    });
  }
}

inline at::Tensor part(const at::Tensor& all, const World& world) {
  const std::int64_t count = all.size(0) / world.size();
  return all.narrow(0, world.rank() * count, count);
}

}  // namespace trestle::testing
