// reshard_after_forward = k: between forward and backward, k ranks together hold each unit.
#include <gmock/gmock.h>

#include "tests/sharding/layered_net.h"
#include "tests/support/device_of_rank.h"
#include "trestle/base/error.h"
#include "trestle/device/virtual_device.h"

namespace trestle::testing {
namespace {

using ::testing::HasSubstr;

struct Trained {
  NamedTensors state;
  ShardReport report;
};

// Two forwards a step, with evaluations between them.
template <class Forward, class Backward>
void train(const Forward& forward, const Backward& backward, torch::optim::Optimizer& optimizer,
           const at::Tensor& x, const at::Tensor& y) {
  const std::int64_t half = x.size(0) / 2;
  for (int step = 0; step < 3; ++step) {
    optimizer.zero_grad();
    const at::Tensor first = forward(x.narrow(0, 0, half));
    if (step == 1) {
      const at::NoGradGuard no_grad;
      forward(x);
    }
    const at::Tensor second = forward(x.narrow(0, half, half));
    backward(loss_of(torch::cat({first, second}), y));
    optimizer.step();
  }
}

Trained train_sharded(const World& world, const DeviceMesh& mesh, const ShardOptions& options) {
  Sharded sharded(make_layered_net(), mesh, options);
  torch::optim::SGD optimizer(sharded.parameters(), 0.1);
  train([&](const at::Tensor& x) { return sharded.forward(x); },
        [&](const at::Tensor& loss) { sharded.backward(loss); }, optimizer,
        part(rows(16, 1), world), part(rows(16, 2), world));
  return {.state = sharded.state(), .report = sharded.report()};
}

double distance(const NamedTensors& a, const NamedTensors& b) {
  double worst = a.size() == b.size() ? 0 : 1e9;
  for (std::size_t i = 0; i < a.size() && i < b.size(); ++i)
    worst = std::max(worst, (a[i].second - b[i].second).abs().max().item<double>());
  return worst;
}

TEST(ShardedReshard, AmongFewRanksTrainsToPlainModelsWeights) {
  nn::Layers plain = make_layered_net();
  std::vector<at::Tensor> parameters;
  std::set<void*> seen;
  for (const auto& [name, tensor] : plain.named_parameters())
    if (seen.insert(tensor.unsafeGetTensorImpl()).second) parameters.push_back(tensor);
  torch::optim::SGD optimizer(parameters, 0.1);
  train([&](const at::Tensor& x) { return plain.forward(x); },
        [](const at::Tensor& loss) { loss.backward(); }, optimizer, rows(16, 1), rows(16, 2));
  Gradients expected;
  for (const auto& [name, tensor] : plain.named_parameters()) expected[name] = tensor.detach();
  for (const int replicas : {1, 2})
    for (const int few : {1, 2, 4})
      spawn(4 * replicas, [&](World& world) {
        const DeviceMesh mesh(world, {{"replicate", replicas}, {"shard", 4}});
        const Trained trained = train_sharded(
            world, mesh, {.level = ShardLevel::Parameters, .reshard_after_forward = few});
        for (const auto& [name, tensor] : trained.state)
          EXPECT_LT((tensor - expected.at(name)).abs().max().item<double>(), 1e-13) << name;
        EXPECT_EQ(trained.report.gathers_from_neighbours > 0, few == 2);
      });
}

TEST(ShardedReshard, KeepsBitsInMixedPrecision) {
  spawn(4, [&](World& world) {
    const DeviceMesh mesh(world, {{"shard", 4}});
    ShardOptions options{.level = ShardLevel::Parameters,
                         .precision = {.parameters = at::kFloat, .output = at::kDouble}};
    const Trained all = train_sharded(world, mesh, options);
    options.reshard_after_forward = 2;
    EXPECT_EQ(distance(all.state, train_sharded(world, mesh, options).state), 0);
    options.reshard_after_forward = true;
    EXPECT_EQ(distance(all.state, train_sharded(world, mesh, options).state), 0);
  });
}

// Each of the eight units is gathered once among all ranks and once among k ranks, which hold 1/k
// of it in between.
TEST(ShardedReshard, HoldsAndSendsDocumentedBytes) {
  static constexpr int ranks = 4, blocks = 8, width = 256;
  static constexpr double bytes = 4.0 * blocks * (width * width + width);
  install_virtual_devices({.count = ranks});
  const auto measure = [&](Reshard reshard) {
    std::pair<double, ShardReport> result;
    spawn(ranks, [&](World& world) {
      const at::Device device = device_of_rank(world.rank());
      const DeviceMesh mesh(world, {{"shard", ranks}});
      nn::Layers net(nn::Seed{1});
      for (int i = 0; i < blocks; ++i)
        net.add("linear" + std::to_string(i), [] { return torch::nn::Linear(width, width); });
      Sharded sharded(
          net, mesh,
          {.level = ShardLevel::Parameters, .reshard_after_forward = reshard, .device = device});
      const at::Tensor x = torch::randn({2, width}).to(device);
      for (int step = 0; step < 2; ++step) {
        const ShardReport before = sharded.report();
        const auto empty = static_cast<double>(memory_usage(device).current);
        const at::Tensor y = sharded.forward(x);
        const double held = static_cast<double>(memory_usage(device).current) - empty;
        sharded.backward(y.square().mean());
        sharded.zero_grad();
        const double left = static_cast<double>(memory_usage(device).current) - empty;
        EXPECT_LT(left, bytes / 50);
        if (world.rank() != 0) continue;
        result.first = held / bytes;
        result.second = sharded.report();
        result.second.gathers -= before.gathers;
        result.second.gathers_from_neighbours -= before.gathers_from_neighbours;
        result.second.gathered -= before.gathered;
      }
    });
    return result;
  };
  const auto [held, report] = measure(2);
  EXPECT_NEAR(held, 0.5, 0.03);
  EXPECT_EQ(report.gathers, 2 * blocks);
  EXPECT_EQ(report.gathers_from_neighbours, blocks);
  EXPECT_EQ(report.gathered, static_cast<Bytes>(2 * bytes));
  EXPECT_NEAR(measure(1).first, 1, 0.03);
  EXPECT_EQ(measure(false).second.gathers, blocks);
  EXPECT_NEAR(measure(4).first, 0, 0.03);
  EXPECT_EQ(measure(true).second.gathers_from_neighbours, 0);
}

TEST(ShardedReshard, RefusesNumberThatDoesNotDivideRanks) {
  for (const int few : {3, 8, 0, -2})
    spawn(4, [&](World& world) {
      const DeviceMesh mesh(world, {{"shard", 4}});
      try {
        const Sharded sharded(make_layered_net(), mesh,
                              {.level = ShardLevel::Parameters, .reshard_after_forward = few});
        ADD_FAILURE() << few;
      } catch (const UsageError& error) {
        EXPECT_THAT(error.what(), HasSubstr("reshard_after_forward = " + std::to_string(few) +
                                            " does not divide the 4 ranks"));
      }
    });
}

}  // namespace
}  // namespace trestle::testing
