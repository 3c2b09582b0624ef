// The peaks of found plans against those of the runs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <functional>
#include <thread>

#include "trestle/comm/threads/spawn.h"
#include "trestle/device/device.h"
#include "trestle/device/virtual_device.h"
#include "trestle/nn/token_loss.h"
#include "trestle/optim/factory.h"
#include "trestle/train/planner/find_plan.h"

namespace trestle {
namespace {

struct PeakCase {
  const char* name;
  std::function<nn::Layers()> net;
  std::function<at::Tensor(std::int64_t)> inputs, targets;  // (examples)
  std::function<nn::Loss()> loss;
  std::int64_t batch = 16;
  std::vector<std::string> keep = {"data=1,pipeline=1,recompute=none"};
  int devices = 1;
  const char* optimizer = "sgd";
};

// The largest peak of a device in the second and third step of the plan.
Bytes peak_of_run(const PeakCase& one, const FoundPlan& plan) {
  const int ranks = plan.strategy.devices();
  std::vector<Bytes> peaks(static_cast<std::size_t>(ranks));
  spawn(ranks, [&](World& world) {
    const DeviceMesh mesh(world, plan.mesh);
    ParallelOptions options = plan.options;
    const at::Device device(at::kPrivateUse1, static_cast<c10::DeviceIndex>(world.rank()));
    options.options.devices = {{.torch = device}};
    const Bytes before = memory_usage(device).current;
    Parallel parallel = parallelize(one.net(), mesh, options);
    const auto optimizer =
        optim::make_optimizer(parallel.parameters(), {.name = one.optimizer, .learning_rate = 0});
    const std::int64_t share = one.batch / parallel.replicas();
    for (int step = 0; step < 3; ++step) {
      if (step == 1) reset_peak_memory(device);
      parallel.zero_grad();
      parallel.step(one.inputs(share), one.targets(share), one.loss());
      optimizer->step();
    }
    peaks[static_cast<std::size_t>(world.rank())] = memory_usage(device).peak - before;
  });
  return *std::max_element(peaks.begin(), peaks.end());
}

FoundPlan plan_of(const PeakCase& one) {
  return find_plan(one.net(), one.inputs(1), one.targets(1), one.loss(),
                   {.devices = one.devices,
                    .batch = one.batch,
                    .keep = plan::parse_kept(one.keep),
                    .optimizer = {.name = one.optimizer}});
}

class FindPlanPeaks : public testing::TestWithParam<PeakCase> {};

TEST_P(FindPlanPeaks, AreThoseOfTheRun) {
  install_virtual_devices({.count = 4, .threads_per_device = 1});
  const FoundPlan plan = plan_of(GetParam());
  const auto measured = static_cast<double>(peak_of_run(GetParam(), plan));
  EXPECT_GE(static_cast<double>(plan.peak) / measured, 0.95) << plan.report;
  EXPECT_LE(static_cast<double>(plan.peak) / measured, 1.15) << plan.report;
}

using Sizes = std::vector<std::int64_t>;

std::function<at::Tensor(std::int64_t)> random_of(Sizes sizes, at::ScalarType type = at::kFloat) {
  return [sizes, type](std::int64_t examples) {
    Sizes all = {examples};
    all.insert(all.end(), sizes.begin(), sizes.end());
    return torch::rand(all).to(type);
  };
}

std::function<at::Tensor(std::int64_t)> classes_of(Sizes sizes, std::int64_t count) {
  return [sizes, count](std::int64_t examples) {
    Sizes all = {examples};
    all.insert(all.end(), sizes.begin(), sizes.end());
    return torch::randint(count, all);
  };
}

nn::Layers perceptron(std::int64_t in, std::int64_t middle, std::int64_t out) {
  nn::Layers net(nn::Seed{1});
  net.add("first", [=] { return torch::nn::Linear(in, middle); });
  net.add("act", [](at::Tensor x) { return x.tanh(); });
  net.add("last", [=] { return torch::nn::Linear(middle, out); });
  return net;
}

// Every pair of examples: its memory grows with the square of the batch.
nn::Loss pairs_of_batch() {
  return nn::whole_batch("pairs", [](const at::Tensor& outputs, const at::Tensor& labels) {
    const at::Tensor scores = outputs.matmul(outputs.t());
    const at::Tensor same = labels.unsqueeze(0).eq(labels.unsqueeze(1)).to(at::kFloat);
    return (scores.log_softmax(1) * same).mean().neg();
  });
}

// The outputs are a mean and a variance for each number of the target.
nn::Loss gaussian() {
  return nn::additive("gaussian", [](const at::Tensor& outputs, const at::Tensor& targets) {
    const auto halves = outputs.chunk(2, 1);
    return (halves[1] + (targets - halves[0]).square() * halves[1].neg().exp()).sum();
  });
}

nn::Loss own_token_loss() {
  return nn::additive("tokens", [](const at::Tensor& outputs, const at::Tensor& targets) {
    return torch::nn::functional::cross_entropy(
        outputs.flatten(0, 1), targets.flatten(),
        torch::nn::functional::CrossEntropyFuncOptions().reduction(torch::kSum));
  });
}

nn::Layers token_net() {
  nn::Layers net(nn::Seed{1});
  net.add("embed", [] { return torch::nn::Embedding(2000, 32); });
  net.add("head", [] { return torch::nn::Linear(32, 2000); });
  return net;
}

nn::Layers pixel_attention() {
  nn::Layers net(nn::Seed{1});
  net.add("patches", [] { return torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 8).stride(8)); });
  net.add("attention", [](at::Tensor x) {
    const at::Tensor flat = x.flatten(2);
    const at::Tensor scores = flat.transpose(1, 2).matmul(flat).softmax(-1);
    return flat.matmul(scores.transpose(1, 2)).view(x.sizes());
  });
  net.add("head", [] { return torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 4, 1)); });
  return net;
}

nn::Layers shallow_convolutions() {
  nn::Layers net(nn::Seed{1});
  net.add("first", [] { return torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)); });
  net.add("head", [] { return torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 1, 1)); });
  return net;
}

nn::Layers of_doubles() {
  nn::Layers net(nn::Seed{1});
  net.add("sine", [](at::Tensor x) { return (x * 2).sin(); });
  net.add("single", [](at::Tensor x) { return x.to(at::kFloat); });
  net.add("head", [] { return torch::nn::Linear(4096, 4); });
  return net;
}

nn::Layers with_wide_output() {
  nn::Layers net(nn::Seed{1});
  net.add("first", [] { return torch::nn::Linear(128, 128); });
  net.add("wide", [] { return torch::nn::Linear(128, 2000); });
  net.add("head", [] { return torch::nn::Linear(2000, 8); });
  return net;
}

INSTANTIATE_TEST_SUITE_P(
    Nets, FindPlanPeaks,
    testing::Values(PeakCase{"LossOverPairs", [] { return perceptron(64, 64, 32); },
                             random_of({64}), classes_of({}, 9), pairs_of_batch, 512},
                    PeakCase{"GaussianLoss", [] { return perceptron(16, 16, 2048); },
                             random_of({16}), random_of({1024}), gaussian, 128},
                    PeakCase{"OwnTokenLoss", token_net, classes_of({64}, 2000),
                             classes_of({64}, 2000), own_token_loss, 8},
                    PeakCase{"AttentionOverPixels", pixel_attention, random_of({3, 320, 320}),
                             random_of({4, 40, 40}), nn::mean_squared_error, 2},
                    PeakCase{"ShallowConvolutions", shallow_convolutions, random_of({3, 64, 64}),
                             random_of({1, 64, 64}), nn::mean_squared_error, 32},
                    PeakCase{"BFloat16",
                             [] { return perceptron(512, 512, 512); },
                             random_of({512}),
                             random_of({512}),
                             nn::mean_squared_error,
                             1024,
                             {"data=1,pipeline=1,recompute=none,precision=bf16"}},
                    PeakCase{"DoubleInputs", of_doubles, random_of({4096}, at::kDouble),
                             random_of({4}), nn::mean_squared_error, 256},
                    PeakCase{"FusedAdam",
                             [] { return perceptron(512, 512, 512); },
                             random_of({512}),
                             random_of({512}),
                             nn::mean_squared_error,
                             4,
                             {"data=1,pipeline=1,recompute=none"},
                             1,
                             "adam"},
                    PeakCase{"ParametersOverFourRanks",
                             [] { return perceptron(512, 512, 512); },
                             random_of({512}),
                             random_of({512}),
                             nn::mean_squared_error,
                             16,
                             {"data=4,level=3,recompute=none"},
                             4,
                             "adam"},
                    PeakCase{"PipelineOverRanks",
                             with_wide_output,
                             random_of({128}),
                             random_of({8}),
                             nn::mean_squared_error,
                             512,
                             {"pipeline=2,micro_batch=128,recompute=none,schedule=1f1b"},
                             2}),
    [](const auto& one) { return std::string(one.param.name); });

// A tied layer shares the tensor of its owner, which the measurement moves.
TEST(FindPlanState, TiedWeightsComeBack) {
  nn::Layers net(nn::Seed{1});
  net.add("embed", [] { return torch::nn::Embedding(50, 16); });
  net.add("head", [] { return torch::nn::Linear(torch::nn::LinearOptions(16, 50).bias(false)); });
  net.tie("head.weight", "embed.weight");
  find_plan(net, torch::randint(50, {1, 8}), torch::randint(50, {1, 8}), nn::token_cross_entropy(),
            {.devices = 2, .batch = 8});
  for (const auto& [name, parameter] : net.named_parameters())
    EXPECT_TRUE(parameter.is_cpu()) << name;
  EXPECT_NO_THROW(net.forward(torch::randint(50, {1, 8})));
}

PeakCase of_width(const char* name, std::int64_t width) {
  return {name,
          [width] { return perceptron(width, width, width); },
          random_of({width}),
          random_of({width}),
          nn::mean_squared_error,
          64,
          {"data=1,pipeline=1,recompute=none,micro_batch=64"}};
}

const PeakCase plain = of_width("plain", 256);

TEST(FindPlanState, BudgetsAndThreadsStay) {
  install_virtual_devices({.count = 2});
  const int threads = at::get_num_threads();
  const at::Device first(at::kPrivateUse1, 0);
  set_budget(first, 8'000'000);
  plan_of(plain);
  EXPECT_EQ(budget(first), 8'000'000);
  EXPECT_EQ(at::get_num_threads(), threads);
  set_budget(first, 0);
}

TEST(FindPlanState, InferenceModeChangesNothing) {
  const Bytes peak = plan_of(plain).peak;
  const c10::InferenceMode inference;
  EXPECT_EQ(plan_of(plain).peak, peak);
}

TEST(FindPlanState, TwoCallsAtOnceMeasureTheirOwnNets) {
  const PeakCase small = of_width("small", 8);
  const Bytes large_peak = plan_of(plain).peak, small_peak = plan_of(small).peak;
  Bytes other = 0;
  std::thread thread([&] { other = plan_of(small).peak; });
  EXPECT_EQ(plan_of(plain).peak, large_peak);
  thread.join();
  EXPECT_EQ(other, small_peak);
}

// The last stage has no parameters, and its rank an optimizer of none.
TEST(FindPlanState, StagesWithoutParametersTrain) {
  const PeakCase one{"one",
                     [] {
                       nn::Layers net(nn::Seed{1});
                       net.add("linear", [] { return torch::nn::Linear(64, 64); });
                       net.add("act", [](at::Tensor x) { return x.tanh(); });
                       return net;
                     },
                     random_of({64}),
                     random_of({64}),
                     nn::mean_squared_error,
                     16,
                     {"pipeline=2,micro_batch=8"},
                     2};
  EXPECT_GT(peak_of_run(one, plan_of(one)), 0);
}

}  // namespace
}  // namespace trestle
