// What "run the forward again" needs to know: recomputation gives the same numbers as the first run,
// whatever the layers do. The oracle is the same plan without recomputation, or plain libtorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/pipeline/support.h"
#include "trestle/base/error.h"
#include "trestle/device/virtual_device.h"

namespace trestle {
namespace {

using support::distance;
using support::message_of;
using testing::AllOf;
using testing::HasSubstr;

constexpr std::int64_t width = 6;
constexpr std::int64_t samples = 8;
constexpr int micro_batches = 4;

torch::nn::Linear linear(int seed, at::ScalarType dtype = at::kDouble) {
  torch::manual_seed(seed);
  torch::nn::Linear layer(width, width);
  layer->to(dtype);
  return layer;
}

at::Tensor input(at::ScalarType dtype = at::kDouble) {
  torch::manual_seed(4);
  return torch::randn({samples, width}, dtype);
}
at::Tensor target() {
  torch::manual_seed(5);
  return torch::randint(width, {samples});
}

using Make = std::function<nn::Layers()>;

// A linear layer, what is under test, and another linear layer.
Make around(std::function<void(nn::Layers&)> middle) {
  return [middle] {
    nn::Layers net;
    net.add("first", linear(1));
    middle(net);
    net.add("last", linear(2));
    return net;
  };
}

std::vector<at::Tensor> gradients_of(const nn::Layers& net) {
  std::vector<at::Tensor> result;
  for (const auto& parameter : net.parameters()) {
    EXPECT_TRUE(parameter.grad().defined());
    result.push_back(parameter.grad().defined() ? parameter.grad().cpu().clone() : at::Tensor());
  }
  return result;
}

std::vector<at::Tensor> step_gradients(const Make& make, std::vector<Device> devices,
                                       Recompute recompute) {
  const support::WatchDog dog("recomputation");
  const nn::Layers net = make();
  const int layers = static_cast<int>(net.size());
  Pipeline pipeline(net, {.devices = std::move(devices),
                          .balance = {1, layers - 1},
                          .micro_batches = micro_batches,
                          .recompute = recompute});
  pipeline.step(input(), target(), nn::cross_entropy());
  pipeline.zero_grad();
  pipeline.step(input(), target(), nn::cross_entropy());
  return gradients_of(net);
}

void expect_equal(const std::vector<at::Tensor>& expected, const std::vector<at::Tensor>& actual,
                  double tolerance = 1e-12) {
  ASSERT_EQ(expected.size(), actual.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_TRUE(expected[i].defined() && actual[i].defined());
    EXPECT_LE(distance(expected[i], actual[i]),
              tolerance * (1 + expected[i].abs().max().item<double>()))
        << "parameter " << i;
  }
}

// Virtual devices, the CPU, and one device for both stages give the numbers of the CPU without
// recomputation.
void expect_recomputed(const Make& make) {
  const std::vector<Device> on_cpu(2, cpu_device());
  const auto expected = step_gradients(make, on_cpu, Recompute::Never);
  for (const auto& devices :
       {on_cpu, virtual_devices(2), std::vector<Device>(2, virtual_devices(1)[0])}) {
    SCOPED_TRACE(device_name(devices[1].torch));
    for (const auto recompute : {Recompute::Never, Recompute::ExceptLast, Recompute::Always}) {
      SCOPED_TRACE(schedule::to_string(recompute));
      expect_equal(expected, step_gradients(make, devices, recompute));
    }
  }
}

TEST(Recompute, ALayerThatDrawsOnTheCpu) {
  expect_recomputed(around([](nn::Layers& net) {
    net.add("drop_path", [](at::Tensor x) {
      return x * torch::rand({x.size(0), 1}, at::kDouble).to(x.device()).ge(0.4);
    });
  }));
}

TEST(Recompute, ALayerThatDrawsOnBothDevices) {
  expect_recomputed(around([](nn::Layers& net) {
    net.add("both", [](at::Tensor x) {
      return torch::dropout(x, 0.3, true) * torch::rand({x.size(0), 1}, at::kDouble).to(x.device());
    });
  }));
}

struct DrawsInEvalImpl : torch::nn::Module {
  at::Tensor forward(at::Tensor x) { return torch::dropout(x, 0.5, true); }
};
TORCH_MODULE(DrawsInEval);

TEST(Recompute, ALayerInEvaluationModeThatStillDraws) {
  expect_recomputed(around([](nn::Layers& net) {
    DrawsInEval layer;
    layer->eval();
    net.add("draws", layer);
  }));
}

TEST(Recompute, EvaluationsOfANetThatDrawsDifferAndAreReproducible) {
  nn::Layers net;
  net.add("draws", DrawsInEval());
  Pipeline pipeline(net, {.devices = virtual_devices(1)});
  const at::Tensor first = pipeline.evaluate(input());
  EXPECT_FALSE(torch::equal(first.cpu(), pipeline.evaluate(input()).cpu()));
  pipeline.set_step_number(0);
  EXPECT_TRUE(torch::equal(first.cpu(), pipeline.evaluate(input()).cpu()));
}

// Reads a buffer and then changes it, as spectral norm and moving averages do.
struct CountsImpl : torch::nn::Module {
  CountsImpl() : n(register_buffer("n", torch::ones({}, at::kDouble))) {}
  at::Tensor forward(at::Tensor x) {
    const at::Tensor scale = n.clone();
    n.add_(1);
    return x * scale;
  }
  at::Tensor n;
};
TORCH_MODULE(Counts);

TEST(Recompute, ALayerThatReadsABufferAndUpdatesIt) {
  for (const auto recompute : {Recompute::Never, Recompute::ExceptLast, Recompute::Always}) {
    SCOPED_TRACE(schedule::to_string(recompute));
    // Plain libtorch: micro-batch m is scaled by 1 + m.
    auto first = linear(1);
    auto last = linear(2);
    const auto x = input().chunk(micro_batches);
    const auto y = target().chunk(micro_batches);
    at::Tensor loss = torch::zeros({}, at::kDouble);
    for (int m = 0; m < micro_batches; ++m) {
      loss = loss + torch::nn::functional::cross_entropy(
                        last->forward(first->forward(x[m]) * (1 + m)), y[m]) /
                        micro_batches;
    }
    loss.backward();
    nn::Layers net;
    net.add("first", linear(1));
    const Counts counts;
    net.add("counts", counts);
    net.add("last", linear(2));
    Pipeline pipeline(net, {.devices = virtual_devices(2),
                            .balance = {1, 2},
                            .micro_batches = micro_batches,
                            .recompute = recompute});
    const auto result = pipeline.step(input(), target(), nn::cross_entropy());
    EXPECT_NEAR(result.loss, loss.item<double>(), 1e-10);
    expect_equal({first->weight.grad(), first->bias.grad(), last->weight.grad(), last->bias.grad()},
                 gradients_of(net), 1e-10);
    EXPECT_EQ(counts->n.item<double>(), 1 + micro_batches);
  }
}

// One power iteration a forward, as spectral norm does.
struct SpectralImpl : torch::nn::Module {
  SpectralImpl() {
    torch::manual_seed(6);
    weight = register_parameter("weight", torch::randn({width, width}, at::kDouble));
    u = register_buffer("u", torch::nn::functional::normalize(
                                 torch::randn({width}, at::kDouble),
                                 torch::nn::functional::NormalizeFuncOptions().dim(0)));
  }
  at::Tensor forward(at::Tensor x) {
    at::Tensor v;
    {
      const torch::NoGradGuard no_grad;
      v = weight.t().mv(u);
      v = v / v.norm();
      at::Tensor next = weight.mv(v);
      u.copy_(next / next.norm());
    }
    const at::Tensor sigma = u.clone().dot(weight.mv(v));
    return x.mm((weight / sigma).t());
  }
  at::Tensor weight, u;
};
TORCH_MODULE(Spectral);

TEST(Recompute, SpectralNorm) {
  expect_recomputed(around([](nn::Layers& net) { net.add("spectral", Spectral()); }));
}

TEST(Recompute, BatchNormKeepsItsStatisticsOnce) {
  expect_recomputed(around([](nn::Layers& net) {
    torch::nn::BatchNorm1d norm(width);
    norm->to(at::kDouble);
    net.add("norm", norm);
    net.add("drop", torch::nn::Dropout(0.4));
  }));
}

// A pipeline as a layer of another one.
struct InnerImpl : torch::nn::Module {
  explicit InnerImpl(std::vector<Device> devices) {
    nn::Layers net;
    const auto inner = linear(3);
    register_module("inner", inner);
    net.add("linear", inner);
    net.add("drop", torch::nn::Dropout(0.5));
    pipeline = std::make_unique<Pipeline>(
        net, PipelineOptions{.devices = std::move(devices), .balance = {1, 1}});
  }
  at::Tensor forward(at::Tensor x) { return pipeline->forward(x).to(x.device()); }
  std::unique_ptr<Pipeline> pipeline;
};
TORCH_MODULE(Inner);

TEST(Recompute, APipelineInsideALayer) {
  const auto run = [](std::vector<Device> outer, std::vector<Device> inner, Recompute recompute) {
    const support::WatchDog dog("a pipeline inside a layer");
    nn::Layers net;
    net.add("first", linear(1));
    const Inner layer(std::move(inner));
    net.add("inner", layer);
    net.add("last", linear(2));
    Pipeline pipeline(net, {.devices = std::move(outer),
                            .balance = {1, 2},
                            .micro_batches = micro_batches,
                            .recompute = recompute});
    // The outer pipeline moved the layer to its own device; the inner one needs its own.
    for (int step = 0; step < 2; ++step) {
      pipeline.zero_grad();
      pipeline.step(input(), target(), nn::cross_entropy());
    }
    EXPECT_EQ(layer->pipeline->step_number(), 0);
    return gradients_of(net);
  };
  const std::vector<Device> cpu(2, cpu_device());
  const auto expected = run(cpu, cpu, Recompute::Never);
  expect_equal(expected, run(cpu, cpu, Recompute::Always));
  const std::vector<Device> one(2, virtual_devices(2)[1]);
  expect_equal(expected, run({virtual_devices(2)[0], one[0]}, one, Recompute::Never));
  expect_equal(expected, run({virtual_devices(2)[0], one[0]}, one, Recompute::Always));
}

nn::Layers with_dropout() {
  nn::Layers net;
  net.add("first", linear(1));
  net.add("drop", torch::nn::Dropout(0.5));
  net.add("last", linear(2));
  return net;
}

TEST(Recompute, EvaluationModeBetweenForwardAndBackward) {
  const auto run = [](Recompute recompute) {
    const nn::Layers net = with_dropout();
    Pipeline pipeline(net,
                      {.devices = virtual_devices(2), .balance = {1, 2}, .recompute = recompute});
    const at::Tensor y = pipeline.forward(input());
    pipeline.eval();
    y.square().sum().backward();
    EXPECT_FALSE(net.graph().layers[1].module->is_training());
    return gradients_of(net);
  };
  expect_equal(run(Recompute::Never), run(Recompute::Always), 0);
}

TEST(Recompute, AChangedParameterIsAnErrorAsItIsWithoutRecomputation) {
  for (const auto recompute : {Recompute::Never, Recompute::Always}) {
    const nn::Layers net = with_dropout();
    Pipeline pipeline(net,
                      {.devices = virtual_devices(2), .balance = {1, 2}, .recompute = recompute});
    const at::Tensor y = pipeline.forward(input());
    {
      const torch::NoGradGuard no_grad;
      net.parameters()[2].mul_(2);  // last.weight
    }
    std::string message;
    try {
      y.square().sum().backward();
    } catch (const std::exception& error) {
      message = error.what();
    }
    if (recompute == Recompute::Never) {
      EXPECT_THAT(message, HasSubstr("inplace operation"));
    } else {
      EXPECT_THAT(message, AllOf(HasSubstr("parameter 'last.weight' was changed in place"),
                                 HasSubstr("optimizer's step() after backward()")));
    }
  }
}

// A float that wants no gradient must not get one only because it will be computed again.
TEST(Recompute, AFloatThatWantsNoGradientStaysOne) {
  expect_recomputed([] {
    nn::Layers net;
    net.add("first", linear(1));
    net.add("weigh", [](at::Tensor x) { return std::make_tuple(x, x.detach().sigmoid()); });
    net.add("loss", [](at::Tensor x, at::Tensor weight) {
      const at::Tensor part =
          torch::binary_cross_entropy(x.sigmoid(), weight.round(), weight, at::Reduction::None);
      EXPECT_FALSE(weight.requires_grad());
      return part + x;
    });
    net.add("last", linear(2));
    return net;
  });
}

TEST(Recompute, AFrozenModelsOutputWantsNoGradient) {
  for (const auto recompute : {Recompute::Never, Recompute::Always}) {
    const nn::Layers net = with_dropout();
    for (auto& parameter : net.parameters()) parameter.requires_grad_(false);
    Pipeline pipeline(net,
                      {.devices = virtual_devices(2), .balance = {1, 2}, .recompute = recompute});
    EXPECT_FALSE(pipeline.forward(input()).requires_grad());
    EXPECT_TRUE(pipeline.forward(input().requires_grad_()).requires_grad());
    net.parameters()[0].requires_grad_();
    EXPECT_TRUE(pipeline.forward(input()).requires_grad());
  }
}

// A stage whose graph needs nothing of its input does not keep it until its backward.
TEST(Recompute, AnInputThatTheGraphDoesNotNeedIsLetGo) {
  constexpr std::int64_t large = 1 << 16;
  nn::Layers net;
  net.add("first", torch::nn::Linear(4, large));
  net.add("sum", [](at::Tensor x) { return x.sum(1, true); });
  net.add("last", torch::nn::Linear(1, 1));
  Pipeline pipeline(net, {.devices = virtual_devices(2), .balance = {1, 2}, .micro_batches = 2});
  const at::Device second = pipeline.device(1).torch;
  const Bytes before = memory_usage(second).current;
  const at::Tensor y = pipeline.forward(torch::randn({8, 4}));
  EXPECT_LT(memory_usage(second).current - before, Bytes{8} * large * 4 / 10);
  y.sum().backward();
  EXPECT_TRUE(net.parameters()[0].grad().defined());
}

}  // namespace
}  // namespace trestle
