// Autocast and recomputation: a recomputed forward casts as the first one did, and cast weights do
// not outlive an optimizer's step.
#include <ATen/autocast_mode.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "tests/pipeline/small_nets.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/device/virtual_device.h"

namespace trestle {
namespace {

using small::expect_equal;
using small::gradients_of;
using small::input;
using small::linear;
using small::micro_batches;
using support::distance;

class AutocastGuard {
 public:
  AutocastGuard() { set(true); }
  ~AutocastGuard() {
    set(false);
    at::autocast::clear_cache();
  }
  static void set(bool enabled) {
    at::autocast::set_autocast_enabled(at::kCPU, enabled);
    at::autocast::set_autocast_enabled(at::kPrivateUse1, enabled);
    at::autocast::set_autocast_dtype(at::kPrivateUse1, at::kBFloat16);
  }
};

nn::Layers in_float() {
  nn::Layers net;
  net.add("first", linear(1, at::kFloat));
  net.add("tanh", torch::nn::Tanh());
  net.add("second", linear(2, at::kFloat));
  net.add("last", linear(3, at::kFloat));
  return net;
}

at::Tensor squares(const at::Tensor& y) { return y.to(at::kFloat).square().mean(); }

TEST(Autocast, RecomputesUnderAutocastOfForward) {
  const auto run = [](const std::vector<Device>& devices, Recompute recompute) {
    const nn::Layers net = in_float();
    Pipeline pipeline(net, {.devices = devices,
                            .balance = {2, 2},
                            .micro_batches = micro_batches,
                            .recompute = recompute});
    at::Tensor y;
    {
      const AutocastGuard autocast;
      y = pipeline.forward(input(at::kFloat));
    }
    EXPECT_EQ(y.scalar_type(), at::kBFloat16);
    squares(y).backward();
    return gradients_of(net);
  };
  for (const auto& devices : {virtual_devices(2), std::vector<Device>(2, cpu_device())})
    expect_equal(run(devices, Recompute::Never), run(devices, Recompute::Always), 0);
}

// The layer uses its weight three times.
struct Thrice : torch::nn::Module {
  Thrice() {
    layer = register_module("layer", torch::nn::Linear(16, 16));
    const torch::NoGradGuard no_grad;
    layer->weight.copy_(torch::linspace(-0.3, 0.4, 256).sin().view({16, 16}));
    layer->bias.copy_(torch::linspace(-0.1, 0.1, 16));
  }
  at::Tensor forward(const at::Tensor& x) { return layer(layer(layer(x).tanh()).tanh()); }
  torch::nn::Linear layer{nullptr};
};

std::map<std::string, at::Tensor> gradients_of_several_uses(PipelineOptions options) {
  nn::Layers net(nn::Seed{1});
  for (const char* name : {"a", "b", "c"}) net.add(name, std::make_shared<Thrice>());
  options.balance = {1, 1, 1};
  options.micro_batches = 8;
  options.numerics.precision = Precision::BFloat16;
  options.cores.threads = 1;
  Pipeline pipeline(net, std::move(options));
  const at::Tensor x = torch::linspace(-1, 1, 256).view({16, 16});
  pipeline.step(x, x.flip(0), nn::mean_squared_error());
  std::map<std::string, at::Tensor> all;
  for (const auto& [name, parameter] : pipeline.named_parameters())
    all.emplace(name, parameter.grad().cpu().clone());
  return all;
}

// One table has the cast weights of all threads. Stages in threads, and ranks, must not clear what
// another stage is about to use again.
TEST(Autocast, AddsTheGradientsOfAWeightOfSeveralUsesAlikeEverywhere) {
  const auto expected = gradients_of_several_uses({});
  const auto expect_bits = [&](const std::map<std::string, at::Tensor>& found) {
    for (const auto& [name, gradient] : found)
      EXPECT_TRUE(gradient.equal(expected.at(name))) << name;
  };
  for (int repeat = 0; repeat < 5; ++repeat) {
    expect_bits(gradients_of_several_uses({.devices = virtual_devices(3)}));
    for (const auto& of_rank : spawn(
             3, [&](World& world) { return gradients_of_several_uses({.group = world.group()}); }))
      expect_bits(of_rank);
  }
}

// Both schedules add the micro-batches in one order.
TEST(Autocast, SplitBackwardsGiveTheBitsOfWholeOnes) {
  for (const auto& devices : {virtual_devices(2), std::vector<Device>{cpu_device()}})
    for (const Recompute recompute : {Recompute::Never, Recompute::Always}) {
      const auto run = [&](const std::string& schedule) {
        const nn::Layers net = in_float();
        Pipeline pipeline(net, {.devices = devices,
                                .balance = {2, 2},
                                .micro_batches = micro_batches,
                                .schedule = schedule,
                                .recompute = recompute,
                                .numerics = {.precision = Precision::BFloat16}});
        const at::Tensor x = input(at::kFloat);
        pipeline.step(x, x.flip(0), nn::mean_squared_error());
        return gradients_of(net);
      };
      expect_equal(run("1f1b"), run("zb_h1"), 0);
    }
}

// autograd adds the gradients of the three uses in bfloat16, before the cast to float, and W may
// add them in another order. Each addition rounds to 8 bits.
TEST(Autocast, SplitBackwardsRoundTheGradientsOfAWeightOfSeveralUses) {
  const auto expected = gradients_of_several_uses({.schedule = "1f1b"});
  for (const auto& devices : {virtual_devices(3), std::vector<Device>{cpu_device()}}) {
    const auto found = gradients_of_several_uses({.devices = devices, .schedule = "zb_h1"});
    ASSERT_EQ(found.size(), expected.size());
    for (const auto& [name, gradient] : found)
      EXPECT_LE(distance(gradient, expected.at(name)),
                expected.at(name).abs().max().item<double>() / 16)
          << name;
  }
}

TEST(Autocast, DropsCastWeightsAfterOptimizerStep) {
  for (const auto recompute : {Recompute::Never, Recompute::Always}) {
    const nn::Layers net = in_float();
    Pipeline pipeline(net, {.devices = virtual_devices(2),
                            .balance = {2, 2},
                            .micro_batches = micro_batches,
                            .recompute = recompute});
    {
      const AutocastGuard autocast;
      const at::Tensor y = pipeline.forward(input(at::kFloat));
      AutocastGuard::set(false);
      squares(y).backward();  // recomputes outside autocast
      AutocastGuard::set(true);
      const torch::NoGradGuard no_grad;
      for (auto& parameter : net.parameters()) parameter.mul_(2);
    }
    const AutocastGuard autocast;
    const at::Tensor after = pipeline.forward(input(at::kFloat)).to(at::kFloat).cpu();
    nn::Layers fresh = in_float();
    {
      const torch::NoGradGuard no_grad;
      for (auto& parameter : fresh.parameters()) parameter.mul_(2);
    }
    const at::Tensor expected = fresh.forward(input(at::kFloat)).to(at::kFloat);
    EXPECT_LT(distance(expected, after), 1e-2 * expected.abs().max().item<double>());
  }
}

TEST(Autocast, GivesEveryWeightItsGradientInStep) {
  const auto run = [](Recompute recompute) {
    const nn::Layers net = in_float();
    Pipeline pipeline(net, {.devices = virtual_devices(2),
                            .balance = {2, 2},
                            .micro_batches = micro_batches,
                            .recompute = recompute});
    const AutocastGuard autocast;
    pipeline.step(
        input(at::kFloat), at::Tensor(),
        nn::additive("squares", [](const at::Tensor& y, const at::Tensor&) { return squares(y); }));
    return gradients_of(net);
  };
  const auto expected = run(Recompute::Never);
  expect_equal(expected, run(Recompute::ExceptLast), 0);
  expect_equal(expected, run(Recompute::Always), 0);
}

}  // namespace
}  // namespace trestle
