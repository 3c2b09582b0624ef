// A plan for a program's own net trains the plain net.
#include "trestle/train/planner/find_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/device/virtual_device.h"
#include "trestle/sharding/sharded_parameters.h"

namespace trestle {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t batch = 16;

nn::Layers make_net() {
  nn::Layers net(nn::Seed{3});
  for (int i = 0; i < 3; ++i) {
    net.add(text("linear", i), [] { return torch::nn::Linear(12, 12); });
    net.add(text("act", i), [](at::Tensor x) { return x.tanh(); });
  }
  net.add("head", [] { return torch::nn::Linear(12, 5); });
  return net;
}

at::Tensor inputs() { return torch::arange(batch * 12).reshape({batch, 12}).sin(); }
at::Tensor targets() { return torch::arange(batch * 5).reshape({batch, 5}).cos(); }

constexpr double rate = 0.5;

struct Trained {
  std::vector<double> losses;
  std::map<std::string, at::Tensor> weights;
};

// Two steps of plain gradient descent.
Trained train_plain() {
  nn::Layers net = make_net();
  Trained trained;
  for (int step = 0; step < 2; ++step) {
    net.zero_grad();
    const at::Tensor loss = nn::mean_squared_error().value(net.forward(inputs()), targets());
    loss.backward();
    trained.losses.push_back(loss.item<double>());
    const at::NoGradGuard no_grad;
    for (const auto& [name, tensor] : net.named_parameters()) tensor.sub_(tensor.grad(), rate);
  }
  for (const auto& [name, tensor] : net.named_parameters()) trained.weights[name] = tensor.detach();
  return trained;
}

void expect_plain_training(const FoundPlan& plan, const Trained& plain) {
  const auto devices = virtual_devices(plan.strategy.devices());
  spawn(plan.strategy.devices(), [&](World& world) {
    const DeviceMesh mesh(world, plan.mesh);
    ParallelOptions options = plan.options;
    options.options.devices = {devices.at(static_cast<std::size_t>(world.rank()))};
    Parallel parallel = parallelize(make_net(), mesh, options);
    const std::int64_t share = batch / parallel.replicas();
    const std::int64_t begin = share * parallel.replica();
    for (int step = 0; step < 2; ++step) {
      parallel.zero_grad();
      const auto done = parallel.step(inputs().narrow(0, begin, share),
                                      targets().narrow(0, begin, share), nn::mean_squared_error());
      EXPECT_NEAR(done.loss, plain.losses[static_cast<std::size_t>(step)], 1e-6);
      const at::NoGradGuard no_grad;
      for (const at::Tensor& parameter : parallel.parameters())
        parameter.sub_(parameter.grad(), rate);
      for (int stage = 0; stage < parallel.pipeline().stage_count(); ++stage)
        if (auto* sharded =
                parallel.pipeline().has_stage(stage) ? parallel.sharded(stage) : nullptr)
          sharded->shards_changed();
    }
    if (plan.strategy.level > 0) return;  // parameters() are shards; the second loss has the update
    for (const auto& [name, tensor] : parallel.named_parameters())
      EXPECT_LT((tensor.detach().cpu() - plain.weights.at(name)).abs().max().item<double>(), 1e-6)
          << name;
  });
}

FoundPlan plan_for(int devices, const std::vector<std::string>& keep = {}, Bytes memory = 0) {
  return find_plan(make_net(), inputs(), targets(), nn::mean_squared_error(),
                   {.devices = devices,
                    .batch = batch,
                    .memory = memory,
                    .keep = plan::parse_kept(keep),
                    .optimizer = {.name = "sgd"}});
}

TEST(FindPlan, TrainsThePlainNet) {
  install_virtual_devices({.count = 4, .threads_per_device = 1});
  const Trained plain = train_plain();
  for (const std::string keep : {"", "data=4,level=0", "data=4,level=1", "data=4,level=3",
                                 "pipeline=2,data=2,level=0,recompute=all", "pipeline=4"}) {
    const FoundPlan plan =
        plan_for(4, keep.empty() ? std::vector<std::string>{} : std::vector{keep});
    EXPECT_EQ(plan.strategy.devices(), 4) << keep;
    EXPECT_EQ(plan.strategy.tensor, 1) << keep;
    EXPECT_GT(plan.seconds, 0) << keep;
    EXPECT_GT(plan.peak, 0) << keep;
    EXPECT_THAT(plan.report, HasSubstr(to_string(plan.strategy))) << keep;
    expect_plain_training(plan, plain);
  }
}

TEST(FindPlan, LeavesTheNetAsItWas) {
  nn::Layers net = make_net();
  std::map<std::string, at::Tensor> before;
  for (const auto& [name, tensor] : net.named_parameters()) before[name] = tensor.detach().clone();
  find_plan(net, inputs(), targets(), nn::mean_squared_error(), {.devices = 2, .batch = batch});
  for (const auto& [name, tensor] : net.named_parameters()) {
    EXPECT_TRUE(at::equal(tensor, before.at(name))) << name;
    EXPECT_TRUE(tensor.is_cpu() && !tensor.grad().defined()) << name;
  }
}

// Layers and losses that work in place must not reach the caller's tensors.
TEST(FindPlan, LeavesDataModesAndGeneratorAsTheyWere) {
  nn::Layers net;
  const auto norm = std::make_shared<torch::nn::BatchNorm1dImpl>(12);
  net.add("relu", torch::nn::ReLU(torch::nn::ReLUOptions().inplace(true)));
  net.add("norm", torch::nn::BatchNorm1d(norm));
  net.add("head", torch::nn::Linear(12, 5));
  norm->eval();
  const at::Tensor x = inputs(), y = targets();
  torch::manual_seed(1);
  find_plan(net, x, y, nn::mean_squared_error(), {.devices = 2, .batch = batch});
  const double drawn = torch::rand({}).item<double>();
  torch::manual_seed(1);
  EXPECT_EQ(drawn, torch::rand({}).item<double>());
  EXPECT_TRUE(at::equal(x, inputs()));
  EXPECT_TRUE(at::equal(y, targets()));
  EXPECT_FALSE(norm->is_training());
}

// A group of one rank would have buffers and do nothing.
TEST(FindPlan, MeshHasNoGroupsOfOneRank) {
  const auto names = [](const std::string& keep) {
    std::vector<std::string> all;
    for (const auto& dimension : plan_for(2, {keep}).mesh)
      all.push_back(text(dimension.name, "=", dimension.size));
    return join(all, " ");
  };
  EXPECT_EQ(names("pipeline=2"), "pipeline=2");
  EXPECT_EQ(names("data=2,level=0"), "pipeline=1 replicate=2");
  EXPECT_EQ(names("data=2,level=1"), "pipeline=1 shard=2");
}

TEST(FindPlan, PlanHasTheKeptPrecision) {
  EXPECT_EQ(plan_for(2, {"precision=bf16"}).options.options.numerics.precision,
            Precision::BFloat16);
  EXPECT_EQ(plan_for(2).options.options.numerics.precision, Precision::Float32);
}

TEST(FindPlan, RefusesWhatCannotBe) {
  const auto refusal = [](const std::function<void()>& call) {
    try {
      call();
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_THAT(refusal([] { plan_for(4, {}, 100); }), HasSubstr("least memory: "));
  EXPECT_THAT(refusal([] { plan_for(11); }), HasSubstr("no strategy is legal for 11 devices"));
  EXPECT_THAT(
      refusal([] { find_plan(make_net(), {}, {}, nn::mean_squared_error(), {.devices = 2}); }),
      HasSubstr("one or more examples"));
  EXPECT_THAT(refusal([] { plan_for(0); }), HasSubstr("find_plan(): devices is 0, below 1"));
  EXPECT_THAT(refusal([] {
                find_plan(make_net(), inputs(), torch::ones({}), nn::mean_squared_error(),
                          {.devices = 2, .batch = batch});
              }),
              HasSubstr("the target of the first example"));
}

}  // namespace
}  // namespace trestle
