#pragma once

#include <torch/torch.h>

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "trestle/device/named_tensors.h"
#include "trestle/sharding/sharded.h"

// A net, its plain training, and the same training sharded.
namespace trestle::testing {

namespace F = torch::nn::functional;
using Weights = std::map<std::string, at::Tensor>;

// The net and its plain training share no code with trestle.
struct NetImpl : torch::nn::Module {
  NetImpl() {
    conv = register_module("conv", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 6, 3).padding(1)));
    norm = register_module("norm", torch::nn::GroupNorm(2, 6));
    a = register_module("a", torch::nn::Linear(6 * 16, 13));
    b = register_module("b", torch::nn::Linear(13, 5));
    scale = register_parameter("scale", torch::full({}, 1.5));
    to(torch::kDouble);
  }
  at::Tensor forward(const at::Tensor& x) {
    at::Tensor y = torch::relu(norm(conv(x)));
    return b(torch::tanh(a(y.flatten(1)))) * scale;
  }
  torch::nn::Conv2d conv{nullptr};
  torch::nn::GroupNorm norm{nullptr};
  torch::nn::Linear a{nullptr}, b{nullptr};
  at::Tensor scale;
};

inline std::shared_ptr<NetImpl> make_plain_net() {
  static std::mutex one_at_a_time;  // ranks are threads with one default generator
  const std::lock_guard lock(one_at_a_time);
  torch::manual_seed(7);
  return std::make_shared<NetImpl>();
}

inline constexpr int steps = 3, batch = 12;
inline at::Tensor images(int step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(100 + step);
  return at::randn({batch, 3, 4, 4}, generator, at::TensorOptions().dtype(at::kDouble));
}
inline at::Tensor targets(int step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(200 + step);
  return at::randint(0, 5, {batch}, generator, at::TensorOptions().dtype(at::kLong));
}

inline Weights weights_of(torch::nn::Module& net) {
  Weights weights;
  for (const auto& item : net.named_parameters())
    weights[item.key()] = item.value().detach().clone();
  return weights;
}

inline const Weights& plain_training() {
  static const Weights weights = [] {
    const auto net = make_plain_net();
    torch::optim::AdamW optimizer(net->parameters(),
                                  torch::optim::AdamWOptions(0.05).weight_decay(0.1));
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      F::cross_entropy(net->forward(images(step)), targets(step)).backward();
      torch::nn::utils::clip_grad_norm_(net->parameters(), 0.5);
      optimizer.step();
    }
    return weights_of(*net);
  }();
  return weights;
}

inline double difference(const Weights& expected, const NamedTensors& actual) {
  if (expected.size() != actual.size()) return 1e9;
  double worst = 0;
  for (const auto& [name, tensor] : actual)
    worst = std::max(worst, (tensor - expected.at(name)).abs().max().item<double>());
  return worst;
}

// Runs the same training on the ranks of a mesh. Returns the distance to the plain training's
// weights.
inline double sharded_training(const World& world, const DeviceMesh& mesh,
                               const ShardOptions& options) {
  ShardedModule<NetImpl> sharded(make_plain_net(), mesh, options);
  torch::optim::AdamW optimizer(sharded.parameters(),
                                torch::optim::AdamWOptions(0.05).weight_decay(0.1));
  const int part = batch / world.size();
  for (int step = 0; step < steps; ++step) {
    optimizer.zero_grad();
    const at::Tensor x = images(step).narrow(0, world.rank() * part, part);
    const at::Tensor y = targets(step).narrow(0, world.rank() * part, part);
    sharded.backward(F::cross_entropy(sharded.forward(x), y));
    sharded.clip_grad_norm(0.5);
    optimizer.step();
  }
  return difference(plain_training(), sharded.state());
}

}  // namespace trestle::testing
