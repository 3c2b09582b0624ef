// Recomputation gives the numbers of the first forward for any layer. The oracle is the same plan
// without recomputation, or plain libtorch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/pipeline/small_nets.h"
#include "trestle/base/error.h"
#include "trestle/device/virtual_device.h"

namespace trestle {
namespace {

using small::expect_equal;
using small::gradients_of;
using small::input;
using small::linear;
using small::micro_batches;
using small::target;
using small::width;
using support::distance;
using ::testing::AllOf;
using ::testing::HasSubstr;

using Make = std::function<nn::Layers()>;

// A linear layer, the layers under test, another linear layer.
Make around(std::function<void(nn::Layers&)> middle) {
  return [middle] {
    nn::Layers net;
    net.add("first", linear(1));
    middle(net);
    net.add("last", linear(2));
    return net;
  };
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

// Expects that virtual devices, the CPU, and one device for both stages give the CPU's numbers
// without recomputation.
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

TEST(Recompute, RepeatsRandomNumbersOfCpu) {
  expect_recomputed(around([](nn::Layers& net) {
    net.add("drop_path", [](at::Tensor x) {
      return x * torch::rand({x.size(0), 1}, at::kDouble).to(x.device()).ge(0.4);
    });
  }));
}

TEST(Recompute, RepeatsRandomNumbersOfBothDevices) {
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

TEST(Recompute, RepeatsRandomNumbersInEvaluationMode) {
  expect_recomputed(around([](nn::Layers& net) {
    DrawsInEval layer;
    layer->eval();
    net.add("draws", layer);
  }));
}

TEST(Recompute, EvaluationsDifferAndAreReproducible) {
  nn::Layers net;
  net.add("draws", DrawsInEval());
  Pipeline pipeline(net, {.devices = virtual_devices(1)});
  const at::Tensor first = pipeline.evaluate(input());
  EXPECT_FALSE(torch::equal(first.cpu(), pipeline.evaluate(input()).cpu()));
  pipeline.set_step_number(0);
  EXPECT_TRUE(torch::equal(first.cpu(), pipeline.evaluate(input()).cpu()));
}

// One power iteration per forward, as in spectral norm.
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

TEST(Recompute, SupportsSpectralNorm) {
  expect_recomputed(around([](nn::Layers& net) { net.add("spectral", Spectral()); }));
}

TEST(Recompute, UpdatesBatchNormStatisticsOnce) {
  expect_recomputed(around([](nn::Layers& net) {
    torch::nn::BatchNorm1d norm(width);
    norm->to(at::kDouble);
    net.add("norm", norm);
    net.add("drop", torch::nn::Dropout(0.4));
  }));
}

nn::Layers with_dropout() {
  nn::Layers net;
  net.add("first", linear(1));
  net.add("drop", torch::nn::Dropout(0.5));
  net.add("last", linear(2));
  return net;
}

TEST(Recompute, RestoresModeOfForward) {
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

TEST(Recompute, RefusesParameterChangedBeforeBackward) {
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

TEST(Recompute, RefusesBatchChangedBeforeBackward) {
  for (const auto recompute : {Recompute::Never, Recompute::Always}) {
    Pipeline pipeline(with_dropout(),
                      {.devices = {cpu_device()}, .balance = {1, 2}, .recompute = recompute});
    at::Tensor x = input();
    pipeline.forward(x);  // the first run uses a copy
    const at::Tensor y = pipeline.forward(x);
    x.zero_();
    std::string message;
    try {
      y.sum().backward();
    } catch (const std::exception& error) {
      message = error.what();
    }
    EXPECT_THAT(message, HasSubstr(recompute == Recompute::Never
                                       ? "inplace operation"
                                       : "input 0 of the model was changed in place"));
  }
}

TEST(Recompute, RestoresRequiresGradOfForward) {
  const nn::Layers net = with_dropout();
  net.parameters()[2].requires_grad_(false);  // last.weight, as in a GAN's discriminator
  Pipeline pipeline(
      net, {.devices = virtual_devices(2), .balance = {1, 2}, .recompute = Recompute::Always});
  const at::Tensor y = pipeline.forward(input());
  net.parameters()[2].requires_grad_(true);
  y.sum().backward();
  EXPECT_FALSE(net.parameters()[2].grad().defined());
  EXPECT_TRUE(net.parameters()[2].requires_grad());
}

TEST(Recompute, AllowsCallerToWriteToOutput) {
  const auto gradient = [](Recompute recompute) {
    nn::Layers net;
    net.add("linear", linear(1));
    net.add("two", [](at::Tensor h) { return std::make_tuple(h, h.exp()); });
    Pipeline pipeline(net, {.devices = std::vector<Device>(2, cpu_device()),
                            .balance = {1, 1},
                            .recompute = recompute});
    for (int call = 0; call < 4; ++call) {
      pipeline.zero_grad();
      nn::Values y = pipeline.forward(nn::Values{input()});
      y[0].sub_(1);
      (y[0].square().mean() + y[1].mean()).backward();
    }
    return net.parameters()[0].grad();
  };
  EXPECT_LT(distance(gradient(Recompute::Never), gradient(Recompute::Always)), 1e-12);
}

// A float without a gradient must not get one because it will be recomputed.
TEST(Recompute, KeepsFloatsWithoutGradient) {
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

// The first micro-batches have no second value; later ones have one with a gradient.
TEST(Recompute, SupportsValueThatIsNoneAtFirst) {
  const auto make = [] {
    return around([](nn::Layers& net) {
      net.add("maybe", [](at::Tensor x) {
        return std::make_tuple(x, x.size(0) > 1 ? x * 2 : at::Tensor());
      });
      net.add("use", [](at::Tensor x, std::optional<at::Tensor> y) { return y ? x + *y : x; });
    })();
  };
  const auto gradients = [&](Recompute recompute) {
    const nn::Layers net = make();
    Pipeline pipeline(net, {.devices = virtual_devices(3),
                            .balance = {2, 1, 1},
                            .micro_batches = 4,
                            .recompute = recompute});
    pipeline.step(input().narrow(0, 0, 4), target().narrow(0, 0, 4), nn::cross_entropy());
    pipeline.step(input(), target(), nn::cross_entropy());
    return gradients_of(net);
  };
  expect_equal(gradients(Recompute::Never), gradients(Recompute::Always));
}

// Changes its own weight in each forward, always alike.
struct ClampsImpl : torch::nn::Module {
  ClampsImpl() : weight(register_parameter("weight", torch::ones({width}, at::kDouble))) {}
  at::Tensor forward(at::Tensor x) {
    {
      const torch::NoGradGuard no_grad;
      weight.clamp_(-0.5, 0.5);
    }
    return x * weight;
  }
  at::Tensor weight;
};
TORCH_MODULE(Clamps);

TEST(Recompute, SupportsForwardThatChangesItsParameter) {
  const auto gradients = [&](Recompute recompute) {
    const nn::Layers net = around([](nn::Layers& layers) { layers.add("clamps", Clamps()); })();
    Pipeline pipeline(net,
                      {.devices = virtual_devices(2), .balance = {1, 2}, .recompute = recompute});
    pipeline.step(input(), target(), nn::cross_entropy());
    return gradients_of(net);
  };
  expect_equal(gradients(Recompute::Never), gradients(Recompute::Always));
}

TEST(Recompute, OutputOfFrozenModelNeedsNoGradient) {
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

// A stage does not keep an input that its graph does not need.
TEST(Recompute, FreesInputThatGraphDoesNotNeed) {
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
