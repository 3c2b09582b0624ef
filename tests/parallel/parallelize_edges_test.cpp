// Steps that fail, uneven evaluations, and layers that are easily mistaken for others.
#include <gmock/gmock.h>
#include <torch/torch.h>

#include <chrono>
#include <map>
#include <memory>
#include <stdexcept>
#include <thread>

#include "tests/sharding/rows.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/nn/layers.h"
#include "trestle/nn/loss.h"
#include "trestle/parallel/checkpoint_layers.h"
#include "trestle/parallel/parallelize.h"
#include "trestle/sharding/sharded_parameters.h"

namespace trestle::testing {
namespace {

// Its backward throws while `armed`.
struct ThrowingBackward : torch::autograd::Function<ThrowingBackward> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            std::int64_t armed) {
    context->saved_data["armed"] = armed;
    return x.clone();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    int& left = *reinterpret_cast<int*>(context->saved_data["armed"].toInt());
    if (left > 0 && --left == 0) throw std::out_of_range("in the backward");
    return {gradients[0], at::Tensor()};
  }
};

// The step fails in the last backward of a stage, which has begun to reduce. Training continues.
TEST(ParallelizeEdges, AStepAfterAFailedBackwardHasThePlainWeights) {
  const std::vector<Device> devices = virtual_devices(2);
  const at::Tensor x = rows(6, 1), y = rows(6, 2).narrow(1, 0, 6);
  for (const auto level : {ShardLevel::None, ShardLevel::OptimizerState, ShardLevel::Gradients,
                           ShardLevel::Parameters})
    for (const int stages : {1, 2})
      for (const char* const where : {"act1", "act2"}) {
        SCOPED_TRACE(text(to_string(level), ", ", stages, " stages, ", where));
        spawn(1, [&](World& world) {
          auto left = std::make_shared<int>(0);
          const auto make = [&](bool throws) {
            nn::Layers net(nn::Seed{4});
            for (const int i : {0, 1, 2, 3}) {
              net.add(text("linear", i), [] { return torch::nn::Linear(6, 6); });
              const bool here = throws && text("act", i) == where;
              net.add(text("act", i), [left, here](at::Tensor v) {
                v = v.sin();
                return here ? ThrowingBackward::apply(v, reinterpret_cast<std::int64_t>(left.get()))
                            : v;
              });
            }
            return net;
          };
          ParallelOptions options{.level = level};
          options.options.micro_batches = 3;
          options.options.balance = stages == 1 ? std::vector{8} : std::vector{4, 4};
          options.options.devices = {devices.begin(), devices.begin() + stages};
          Parallel parallel(make(true), DeviceMesh(world, {{"shard", 1}}), options);
          nn::Layers plain = make(false);
          torch::optim::SGD own(parallel.parameters(), 0.1), same(plain.parameters(), 0.1);
          const auto step = [&] {
            parallel.zero_grad();
            parallel.step(x.to(at::kFloat), y.to(at::kFloat), nn::mean_squared_error());
            own.step();
            for (int stage = 0; stage < stages; ++stage) parallel.sharded(stage)->shards_changed();
          };
          for (int good = 0; good < 3; ++good) {
            if (good == 1) {
              *left = 3;  // micro-batches
              EXPECT_THROW(step(), std::out_of_range);
            }
            step();
            same.zero_grad();
            torch::mse_loss(plain.forward(x.to(at::kFloat)), y.to(at::kFloat)).backward();
            same.step();
          }
          std::map<std::string, at::Tensor> weights;
          for (int stage = 0; stage < stages; ++stage)
            for (const auto& [name, value] : parallel.sharded(stage)->state())
              weights[name] = value;
          for (const auto& [name, parameter] : plain.named_parameters())
            EXPECT_LT((weights.at(name).cpu() - parameter).abs().max().item<double>(), 1e-5)
                << name << ", " << to_string(level) << ", " << stages << " stages, " << where;
        });
      }
}

// Both stages of a rank share its device. The recomputed forwards of stage 0 are slow on rank 0,
// those of stage 1 on rank 1. With a thread for each stage, rank 0 would run a backward of stage 1
// first and rank 1 one of stage 0, and each would wait for the other's all-gathers.
TEST(ParallelizeEdges, StagesThatShareADeviceHaveOneOrderOnAllRanks) {
  const std::vector<Device> devices = virtual_devices(2);
  const at::Tensor x = rows(8, 1).to(at::kFloat), y = rows(8, 2).to(at::kFloat).narrow(1, 0, 6);
  const auto make = [](int slow_stage) {
    nn::Layers net(nn::Seed{4});
    for (const int stage : {0, 1}) {
      net.add(text("linear", stage), [] { return torch::nn::Linear(6, 6); });
      net.add(text("act", stage), [slow = stage == slow_stage](at::Tensor v) {
        if (slow) std::this_thread::sleep_for(std::chrono::milliseconds(20));
        return v.sin();
      });
    }
    return net;
  };
  nn::Layers plain = make(-1);
  torch::optim::SGD same(plain.parameters(), 0.1);
  for (int step = 0; step < 2; ++step) {
    same.zero_grad();
    torch::mse_loss(plain.forward(x), y).backward();
    same.step();
  }
  for (const char* const schedule : {"gpipe", "1f1b"})
    spawn(2, [&](World& world) {
      ParallelOptions options{.level = ShardLevel::Parameters};
      options.options.micro_batches = 4;
      options.options.schedule = schedule;
      options.options.recompute = Recompute::Always;
      options.options.balance = {2, 2};
      options.options.devices = {devices[world.rank()], devices[world.rank()]};
      options.options.deadline = std::chrono::seconds(20);
      Parallel parallel(make(world.rank()), DeviceMesh(world, {{"shard", 2}}), options);
      torch::optim::SGD own(parallel.parameters(), 0.1);
      const auto share = [&](const at::Tensor& all) { return all.narrow(0, 4 * world.rank(), 4); };
      for (int step = 0; step < 2; ++step) {
        parallel.zero_grad();
        parallel.step(share(x), share(y), nn::mean_squared_error());
        own.step();
        for (const int stage : {0, 1}) parallel.sharded(stage)->shards_changed();
      }
      std::map<std::string, at::Tensor> expected;
      for (const auto& [name, value] : plain.named_parameters()) expected.emplace(name, value);
      for (const int stage : {0, 1})
        for (const auto& [name, value] : parallel.sharded(stage)->state())
          EXPECT_TRUE(at::allclose(value.cpu(), expected.at(name), 1e-5, 1e-6))
              << name << ", " << schedule;
    });
}

// Each would wait for the other in the device's backward thread.
TEST(ParallelizeEdges, RefusesReplicasThatAreThreadsOnOneDevice) {
  const std::vector<Device> devices = virtual_devices(2);
  for (const auto level : {ShardLevel::None, ShardLevel::Gradients, ShardLevel::Parameters}) {
    const auto all = spawn(2, [&](World& world) -> std::string {
      nn::Layers net(nn::Seed{4});
      for (const char* const name : {"a", "b"})
        net.add(name, [] { return torch::nn::Linear(6, 6); });
      ParallelOptions options{.level = level};
      options.options.balance = {1, 1};
      options.options.devices = {devices[world.rank()], devices[1 - world.rank()]};
      try {
        Parallel(net, DeviceMesh(world, {{"shard", 2}}), options);
      } catch (const UsageError& error) {
        return error.what();
      }
      return "";
    });
    for (const std::string& message : all)
      EXPECT_THAT(message,
                  ::testing::HasSubstr("ranks 0 and 1 that share each batch both use vir"));
  }
}

// The second stage has no parameters, and the replicas evaluate different numbers of micro-batches.
TEST(ParallelizeEdges, EvaluatesRaggedBatchesThroughAStageWithoutParameters) {
  const std::vector<Device> devices = virtual_devices(4);
  const auto make = [] {
    nn::Layers net(nn::Seed{4});
    net.add("linear", [] { return torch::nn::Linear(6, 6); });
    net.add("last", [](at::Tensor v) { return v.tanh(); });
    return net;
  };
  const at::Tensor x = rows(3, 1).to(at::kFloat);
  const at::Tensor expected = make().forward(x);
  spawn(2, [&](World& world) {
    ParallelOptions options{.level = ShardLevel::Parameters};
    options.options.micro_batches = 2;
    options.options.balance = {1, 1};
    options.options.devices = {devices[2 * world.rank()], devices[2 * world.rank() + 1]};
    Parallel parallel(make(), DeviceMesh(world, {{"shard", 2}}), options);
    for (int step = 0; step < 2; ++step)
      parallel.step(x.narrow(0, 0, 2), x.narrow(0, 0, 2), nn::mean_squared_error());
    const at::Tensor got = parallel.evaluate(x.narrow(0, world.rank(), 1 + world.rank()));
    EXPECT_EQ(got.size(0), 1 + world.rank());
  });
}

// Three replicas evaluate one, two and three micro-batches, each on two stages in one process: a
// thread for each stage, or one thread for both.
TEST(ParallelizeEdges, EvaluatesThreeDifferentNumbersOfMicroBatches) {
  std::vector<Device> devices = virtual_devices(6);
  for (const bool one_thread : {false, true}) {
    if (one_thread) std::fill(devices.begin(), devices.end(), cpu_device());
    const auto make = [] {
      nn::Layers net(nn::Seed{4});
      for (const char* const name : {"a", "b", "c", "d"})
        net.add(name, [] { return torch::nn::Linear(6, 6); });
      return net;
    };
    const at::Tensor x = rows(4, 1).to(at::kFloat);
    const at::Tensor expected = make().forward(x);
    spawn(3, [&](World& world) {
      const int rank = world.rank();
      ParallelOptions options{.level = ShardLevel::Parameters};
      options.options.micro_batches = 4;
      options.options.balance = {2, 2};
      options.options.devices = {devices[2 * rank], devices[2 * rank + 1]};
      options.options.deadline = std::chrono::seconds(20);
      Parallel parallel(make(), DeviceMesh(world, {{"shard", 3}}), options);
      for (int time = 0; time < 2; ++time) {
        const at::Tensor got = parallel.evaluate(x.narrow(0, 0, rank + 1));
        EXPECT_TRUE(at::allclose(got.cpu(), expected.narrow(0, 0, rank + 1)));
      }
    });
  }
}

// "a.weight" is of the layer "a", "a.b.weight" of the nested model's layer "a.b".
TEST(ParallelizeEdges, TellsALayerFromANestedModelOfItsName) {
  const std::vector<Device> devices = virtual_devices(2);
  const auto make = [] {
    nn::Layers inner(nn::Seed{5});
    inner.add("b", [] { return torch::nn::Linear(6, 6); });
    nn::Layers net(nn::Seed{4});
    net.add("a", [] { return torch::nn::Linear(6, 6); });
    net.add("a", inner);
    return net;
  };
  nn::Layers plain = make();
  const at::Tensor x = rows(4, 1).to(at::kFloat), y = rows(4, 2).to(at::kFloat).narrow(1, 0, 6);
  torch::mse_loss(plain.forward(x), y).backward();
  for (const auto level : {ShardLevel::OptimizerState, ShardLevel::Parameters})
    spawn(1, [&](World& world) {
      ParallelOptions options{.level = level};
      options.options.balance = {1, 1};
      options.options.devices = devices;
      Parallel parallel(make(), DeviceMesh(world, {{"shard", 1}}), options);
      parallel.step(x, y, nn::mean_squared_error());
      EXPECT_EQ(parallel.sharded(0)->named_parameters().size(), 2U);
      EXPECT_EQ(parallel.sharded(1)->named_parameters().size(), 2U);
    });
}

// A deferred batch norm leaves other running statistics in the first run than the recomputation.
TEST(ParallelizeEdges, CheckpointsBatchNormsOfTheWholeBatch) {
  const auto statistics_of = [](int segments, std::vector<std::string> names) {
    nn::Layers net(nn::Seed{4});
    net.add("linear", [] { return torch::nn::Linear(6, 6); });
    net.add("norm", [] { return torch::nn::BatchNorm1d(6); });
    net.add("out", [] { return torch::nn::Linear(6, 6); });
    PipelineOptions options{.balance = {3}, .micro_batches = 2, .checkpoint_segments = segments};
    options.numerics.batch_norm = nn::BatchNormStatistics::WholeBatch;
    if (!names.empty()) options.wrap_layers = checkpoint_layers(names);
    Pipeline pipeline(net, options);
    const at::Tensor x = rows(6, 1).to(at::kFloat), y = rows(6, 2).to(at::kFloat).narrow(1, 0, 6);
    for (int step = 0; step < 2; ++step) pipeline.step(x, y, nn::mean_squared_error());
    std::vector<at::Tensor> all;
    for (const auto& [name, buffer] : pipeline.named_buffers()) all.push_back(buffer.clone());
    for (const auto& [name, one] : pipeline.named_parameters()) all.push_back(one.grad().clone());
    return all;
  };
  const auto plain = statistics_of(0, {});
  for (const auto& got : {statistics_of(1, {}), statistics_of(3, {}), statistics_of(0, {"norm"})}) {
    ASSERT_EQ(got.size(), plain.size());
    for (std::size_t i = 0; i < got.size(); ++i) EXPECT_TRUE(at::equal(got[i], plain[i])) << i;
  }
}

}  // namespace
}  // namespace trestle::testing
