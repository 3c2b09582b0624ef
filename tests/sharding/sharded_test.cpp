// Same gradients and same weights at every level, on every number of ranks.
#include "trestle/sharding/sharded.h"

#include <gmock/gmock.h>
#include <torch/torch.h>

#include <map>
#include <mutex>

#include "trestle/base/error.h"
#include "trestle/comm/spawn.h"
#include "trestle/device/virtual_device.h"
#include "trestle/optim/factory.h"

namespace trestle {
namespace {

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

std::shared_ptr<NetImpl> make_net() {
  static std::mutex one_at_a_time;  // ranks are threads, with one default generator
  const std::lock_guard lock(one_at_a_time);
  torch::manual_seed(7);
  return std::make_shared<NetImpl>();
}

constexpr int steps = 3, batch = 12;
at::Tensor images(int step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(100 + step);
  return at::randn({batch, 3, 4, 4}, generator, at::TensorOptions().dtype(at::kDouble));
}
at::Tensor targets(int step) {
  auto generator = at::make_generator<at::CPUGeneratorImpl>(200 + step);
  return at::randint(0, 5, {batch}, generator, at::TensorOptions().dtype(at::kLong));
}

Weights weights_of(torch::nn::Module& net) {
  Weights weights;
  for (const auto& item : net.named_parameters())
    weights[item.key()] = item.value().detach().clone();
  return weights;
}

const Weights& plain_training() {
  static const Weights weights = [] {
    const auto net = make_net();
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

double difference(const Weights& expected, const NamedTensors& actual) {
  if (expected.size() != actual.size()) return 1e9;
  double worst = 0;
  for (const auto& [name, tensor] : actual)
    worst = std::max(worst, (tensor - expected.at(name)).abs().max().item<double>());
  return worst;
}

struct Case {
  ShardLevel level;
  int replicate, shard;
};

std::string name_of(const testing::TestParamInfo<Case>& info) {
  std::string level(to_string(info.param.level));
  return level + "_" + std::to_string(info.param.replicate) + "x" +
         std::to_string(info.param.shard);
}

class EveryLevel : public testing::TestWithParam<Case> {};

TEST_P(EveryLevel, TrainsToThePlainModelsWeights) {
  const Case given = GetParam();
  const Weights& expected = plain_training();
  spawn(given.replicate * given.shard, [&](World& world) {
    const DeviceMesh mesh(world, {{"replicate", given.replicate}, {"shard", given.shard}});
    ShardedModule<NetImpl> sharded(make_net(), mesh,
                                   {.level = given.level, .bucket = 2048, .first_bucket = 512});
    torch::optim::AdamW optimizer(sharded.parameters(),
                                  torch::optim::AdamWOptions(0.05).weight_decay(0.1));
    const int ranks = world.size(), part = batch / ranks;
    for (int step = 0; step < steps; ++step) {
      optimizer.zero_grad();
      const at::Tensor x = images(step).narrow(0, world.rank() * part, part);
      const at::Tensor y = targets(step).narrow(0, world.rank() * part, part);
      sharded.backward(F::cross_entropy(sharded.forward(x), y));
      sharded.clip_grad_norm(0.5);
      optimizer.step();
    }
    EXPECT_LT(difference(expected, sharded.state()), 1e-12) << "rank " << world.rank();
  });
}

INSTANTIATE_TEST_SUITE_P(
    Levels, EveryLevel,
    testing::Values(Case{ShardLevel::None, 1, 1}, Case{ShardLevel::None, 3, 1},
                    Case{ShardLevel::None, 2, 2}, Case{ShardLevel::OptimizerState, 1, 2},
                    Case{ShardLevel::OptimizerState, 1, 4}, Case{ShardLevel::Gradients, 1, 1},
                    Case{ShardLevel::Gradients, 1, 3}, Case{ShardLevel::Gradients, 2, 2},
                    Case{ShardLevel::Parameters, 1, 1}, Case{ShardLevel::Parameters, 1, 2},
                    Case{ShardLevel::Parameters, 1, 4}, Case{ShardLevel::Parameters, 2, 2}),
    name_of);

}  // namespace
}  // namespace trestle
