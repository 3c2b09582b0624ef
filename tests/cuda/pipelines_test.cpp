// Whole pipelines on asynchronous devices, compared with the plain model in plain libtorch.
#include "tests/cuda/async_devices.h"
#include "tests/pipeline/support.h"
#include "trestle/nn/layers.h"
#include "trestle/nn/loss.h"
#include "trestle/pipeline/pipeline.h"

namespace trestle {
namespace {

using support::async_device;
using support::async_devices;
using support::distance;

struct Plan {
  std::string schedule;
  Recompute recompute;
  int micro_batches;
};

class Pipelines : public support::AsyncDevices, public ::testing::WithParamInterface<Plan> {};

// Two convolutions in sequence, joined with a skip; equal weights on each call.
struct Net {
  torch::nn::Conv2d first{torch::nn::Conv2dOptions(3, 8, 3).padding(1)};
  torch::nn::Conv2d second{torch::nn::Conv2dOptions(8, 8, 3).padding(1)};
  torch::nn::Conv2d last{torch::nn::Conv2dOptions(16, 4, 1)};

  nn::Layers layers() {
    nn::Layers net;
    net.add("first", first).keep_output("fine");
    net.add("relu", torch::nn::ReLU());
    net.add("second", second);
    net.add("tanh", torch::nn::Tanh());
    net.add("join",
            [](at::Tensor x, at::Tensor fine) {
              return torch::cat({x, fine}, 1);
            })
        .take("fine");
    net.add("last", last);
    return net;
  }
  at::Tensor plain(const at::Tensor& x) {
    const auto fine = first(x);
    return last(torch::cat({torch::tanh(second(torch::relu(fine))), fine}, 1));
  }
  std::vector<at::Tensor> parameters() const {
    return {first->weight, first->bias, second->weight, second->bias, last->weight, last->bias};
  }
};

Net make_net() {
  torch::manual_seed(8);
  Net net;
  for (auto& parameter : net.parameters()) parameter.set_data(parameter.to(at::kDouble));
  return net;
}

TEST_P(Pipelines, HavePlainModelsGradients) {
  const Plan& plan = GetParam();
  torch::manual_seed(2);
  const at::Tensor images = torch::randn({8, 3, 12, 16}, at::kDouble);
  const at::Tensor classes = torch::randint(4, {8, 12, 16});
  Net expected = make_net();
  const auto loss = torch::cross_entropy_loss(expected.plain(images), classes);
  loss.backward();

  for (const std::vector<int>& balance : {std::vector<int>{6}, {3, 3}, {1, 2, 3}}) {
    Net own = make_net();
    Pipeline pipeline(own.layers(), {.devices = async_devices(static_cast<int>(balance.size())),
                                     .balance = balance,
                                     .micro_batches = plan.micro_batches,
                                     .schedule = plan.schedule,
                                     .recompute = plan.recompute});
    for (int again = 0; again < 2; ++again) {
      pipeline.zero_grad();
      support::keep_busy(async_device(0));
      const auto result = pipeline.step(images, classes, nn::cross_entropy());
      EXPECT_NEAR(result.loss, loss.item<double>(), 1e-10);
      for (std::size_t i = 0; i < own.parameters().size(); ++i)
        EXPECT_LE(distance(own.parameters()[i].grad(), expected.parameters()[i].grad()), 1e-10)
            << "parameter " << i;
    }
  }
}

TEST_P(Pipelines, HavePlainModelsGradientsInCallersBackward) {
  const Plan& plan = GetParam();
  torch::manual_seed(2);
  const at::Tensor images = torch::randn({8, 3, 12, 16}, at::kDouble).requires_grad_();
  Net expected = make_net();
  expected.plain(images).square().mean().backward();

  Net own = make_net();
  Pipeline pipeline(own.layers(), {.devices = async_devices(2),
                                   .balance = {3, 3},
                                   .micro_batches = plan.micro_batches,
                                   .recompute = plan.recompute});
  const at::Tensor there = images.detach().to(async_device(1)).requires_grad_();
  support::keep_busy(async_device(1));
  pipeline.forward(there).square().mean().backward();
  EXPECT_LE(distance(there.grad(), images.grad()), 1e-10);
  for (std::size_t i = 0; i < own.parameters().size(); ++i)
    EXPECT_LE(distance(own.parameters()[i].grad(), expected.parameters()[i].grad()), 1e-10);
}

INSTANTIATE_TEST_SUITE_P(Plans, Pipelines,
                         ::testing::Values(Plan{"gpipe", Recompute::Never, 4},
                                           Plan{"gpipe", Recompute::Always, 3},
                                           Plan{"1f1b", Recompute::ExceptLast, 4},
                                           Plan{"1f1b", Recompute::Never, 1}));

using OnePipeline = support::AsyncDevices;

// torchgpipe's T64: each of a message's two values is waited for, even if one gradient is late.
TEST_F(OnePipeline, T64WaitsForEveryTensorOfMessage) {
  nn::Layers net;
  net.add("both", [](at::Tensor x) { return std::make_tuple(x * 2, x * 3); });
  net.add("late", [](at::Tensor a, at::Tensor b) {
    support::keep_busy(a.device());
    return std::make_tuple(a + 1, b * 5);
  });
  net.add("sum", [](at::Tensor a, at::Tensor b) { return a + b; });
  Pipeline pipeline(net, {.devices = async_devices(3), .balance = {1, 1, 1}, .micro_batches = 8});
  const auto x = torch::ones({32, 4}, at::kDouble).to(async_device(0)).requires_grad_();
  const at::Tensor y = pipeline.forward(x);
  EXPECT_EQ(y.sum().item<double>(), 18 * 128);
  y.sum().backward();
  EXPECT_EQ(x.grad().sum().item<double>(), 17 * 128);
}

// One key draws the same numbers, with and without recomputation.
TEST_F(OnePipeline, DropoutIsKeyed) {
  const auto gradients = [](Recompute recompute, std::vector<int> balance) {
    torch::manual_seed(1);
    torch::nn::Linear linear(16, 16);
    nn::Layers net;
    net.add("linear", linear);
    net.add("dropout", torch::nn::Dropout(0.5));
    net.add("square", [](at::Tensor x) { return x.square(); });
    Pipeline pipeline(net, {.devices = async_devices(static_cast<int>(balance.size())),
                            .balance = balance,
                            .micro_batches = 4,
                            .recompute = recompute,
                            .numerics = {.seed = 3}});
    pipeline.step(
        torch::ones({8, 16}), at::Tensor(),
        nn::additive("mean", [](const at::Tensor& y, const at::Tensor&) { return y.mean(); }));
    return linear->weight.grad().cpu();
  };
  const at::Tensor expected = gradients(Recompute::Never, {3});
  EXPECT_GT(expected.abs().sum().item<float>(), 0);
  EXPECT_TRUE(torch::equal(expected, gradients(Recompute::Always, {3})));
  EXPECT_LE(distance(expected, gradients(Recompute::Always, {1, 2})), 1e-6);
}

TEST_F(OnePipeline, MeasuresProfileTimelineAndMemoryOfDevice) {
  Net own = make_net();
  Pipeline pipeline(own.layers(),
                    {.devices = async_devices(2), .balance = {3, 3}, .micro_batches = 2});
  const at::Tensor images = torch::randn({4, 3, 64, 64}, at::kDouble);
  const at::Tensor classes = torch::randint(4, {4, 64, 64});
  const auto costs = pipeline.profile({images}, classes, nn::cross_entropy());
  pipeline.step(images, classes, nn::cross_entropy());
  const auto timeline = pipeline.timeline();
  for (const auto& stage : costs.stages) {
    EXPECT_GT(stage.forward, 0);
    EXPECT_GT(stage.saved, 0);
  }
  for (const auto& event : timeline.events) EXPECT_GE(event.end, event.begin);
  for (const Bytes peak : timeline.peak_bytes) EXPECT_GT(peak, 0);
}

}  // namespace
}  // namespace trestle
