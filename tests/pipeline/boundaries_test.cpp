// Values that cross stage boundaries, evaluation, and batch shapes.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <tuple>

#include "tests/pipeline/support.h"
#include "tests/support/oracle.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"

namespace trestle {
namespace {

using support::chain;
using support::distance;
using support::input;
using support::message_of;
using support::target;
using support::width;
using ::testing::HasSubstr;

using Make = std::function<nn::Layers()>;

// Runs a step under every cut into two and three stages with each recompute mode and compares it
// with the plain model.
void expect_same_everywhere(const Make& make, std::int64_t samples = 7, int micro_batches = 3) {
  const support::WatchDog dog("boundaries");
  const at::Tensor x = input(samples);
  const at::Tensor y = target(samples);
  const auto expected = oracle::looped(make(), x, y, nn::cross_entropy(), micro_batches);
  const int layers = static_cast<int>(make().size());
  for (const bool one_device : {false, true}) {
    for (int first = 1; first < layers; ++first) {
      for (const bool three : {false, true}) {
        if (three && layers - first < 2) continue;
        const std::vector<int> balance = three ? std::vector<int>{first, 1, layers - first - 1}
                                               : std::vector<int>{first, layers - first};
        auto devices = virtual_devices(3);
        devices.resize(balance.size());
        if (one_device) devices.assign(1, devices[0]);
        for (const Recompute recompute :
             {Recompute::Never, Recompute::ExceptLast, Recompute::Always}) {
          SCOPED_TRACE(text("balance [", join(balance, ", "), "], recompute ",
                            schedule::to_string(recompute), one_device ? ", one device" : ""));
          const nn::Layers net = make();
          Pipeline pipeline(net, {.devices = devices,
                                  .balance = balance,
                                  .micro_batches = micro_batches,
                                  .recompute = recompute});
          const auto result =
              pipeline.step(x, y, nn::cross_entropy(), {.output = StepOptions::Output::Keep});
          oracle::expect_same(expected, oracle::collect(net, result.loss, result.output, x));
          EXPECT_LT(distance(expected.output, result.output), 1e-10);
        }
      }
    }
  }
}

torch::nn::Linear linear() {
  torch::nn::Linear layer(width, width);
  layer->to(at::kDouble);
  return layer;
}

// Begins and ends with a layer that has parameters, so that a gradient crosses each cut.
Make between_linears(std::function<void(nn::Layers&)> middle) {
  return [middle] {
    torch::manual_seed(4);
    nn::Layers net;
    net.add("first", linear());
    middle(net);
    net.add("last", linear());
    return net;
  };
}

TEST(Boundaries, CarryTuples) {
  expect_same_everywhere(between_linears([](nn::Layers& net) {
    net.add("fork", [](at::Tensor x) { return std::make_tuple(x.tanh(), x * 2, x.relu()); });
    net.add("join", [](at::Tensor a, at::Tensor b, at::Tensor c) { return a * b + c; });
  }));
}

TEST(Boundaries, CarryIntegersAndBooleans) {
  expect_same_everywhere(between_linears([](nn::Layers& net) {
    net.add("find", [](at::Tensor x) { return std::make_tuple(x, x.argmax(1), x > 0); });
    net.add("use", [](at::Tensor x, at::Tensor index, at::Tensor mask) {
      return x.masked_fill(mask, 0.5) + x.gather(1, index.unsqueeze(1));
    });
  }));
}

TEST(Boundaries, CarryNone) {
  expect_same_everywhere(between_linears([](nn::Layers& net) {
    net.add("maybe", [](at::Tensor x) { return std::make_tuple(x, at::Tensor()); });
    net.add("take", [](at::Tensor x, std::optional<at::Tensor> y) { return y ? *y : x * 3; });
  }));
}

TEST(Boundaries, CarryFloatsWithoutGradient) {
  expect_same_everywhere(between_linears([](nn::Layers& net) {
    net.add("scale", [](at::Tensor x) { return std::make_tuple(x, x.detach().abs().amax(1)); });
    net.add("use", [](at::Tensor x, at::Tensor by) { return x / (1 + by.unsqueeze(1)); });
  }));
}

TEST(Boundaries, CarryValueWithoutGradientPath) {
  expect_same_everywhere(between_linears([](nn::Layers& net) {
    net.add("two", [](at::Tensor x) { return std::make_tuple(x, x * 2); });
    net.add("ignore", [](at::Tensor x, at::Tensor y) { return x + y.detach(); });
  }));
}

TEST(Boundaries, AllowInPlaceLayers) {
  expect_same_everywhere(between_linears([](nn::Layers& net) {
    net.add("add", [](at::Tensor x) { return x.add_(1); });
    net.add("mul", [](at::Tensor x) { return x.mul_(3); });
    net.add("relu", torch::nn::ReLU(torch::nn::ReLUOptions().inplace(true)));
  }));
}

TEST(Boundaries, CarryViews) {
  expect_same_everywhere(between_linears([](nn::Layers& net) {
    net.add("turn", [](at::Tensor x) { return x.view({-1, 2, 3}).transpose(1, 2); });
    net.add("part", [](at::Tensor x) { return std::make_tuple(x.select(2, 0), x.select(2, 1)); });
    net.add("back", [](at::Tensor a, at::Tensor b) { return torch::cat({a, b}, 1); });
    net.add("same", [](at::Tensor x) { return x; });
  }));
}

struct IdentityFunction : torch::autograd::Function<IdentityFunction> {
  static at::Tensor forward(torch::autograd::AutogradContext*, const at::Tensor& x) { return x; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return gradients;
  }
};

TEST(Boundaries, AllowAutogradFunctionThatReturnsItsInput) {
  expect_same_everywhere(between_linears([](nn::Layers& net) {
    net.add("one", [](at::Tensor x) { return IdentityFunction::apply(x); });
    net.add("two", [](at::Tensor x) { return IdentityFunction::apply(x); });
  }));
}

TEST(Boundaries, AllowFrozenAndParameterlessStages) {
  for (const int frozen : {0, 1, 2}) {
    SCOPED_TRACE(frozen);
    expect_same_everywhere([frozen] {
      const nn::Layers net = chain(3, width);
      for (auto& [name, parameter] : net.named_parameters()) {
        if (name.starts_with("linear" + std::to_string(frozen))) parameter.requires_grad_(false);
      }
      return net;
    });
  }
}

TEST(Boundaries, AllowModelWithoutTrainableParameters) {
  const nn::Layers net = chain(2, width);
  for (auto& parameter : net.parameters()) parameter.requires_grad_(false);
  for (const Recompute recompute : {Recompute::Never, Recompute::Always}) {
    Pipeline pipeline(net, {.devices = virtual_devices(2),
                            .balance = {2, 1},
                            .micro_batches = 2,
                            .recompute = recompute});
    EXPECT_GT(pipeline.step(input(4), target(4), nn::cross_entropy()).loss, 0);
    EXPECT_FALSE(net.parameters()[0].grad().defined());
  }
}

TEST(Boundaries, AllowRaggedAndShortBatches) {
  for (const std::int64_t samples : {1, 2, 5, 7}) {
    SCOPED_TRACE(samples);
    expect_same_everywhere([] { return chain(2, width); }, samples, 4);
  }
}

TEST(Boundaries, AllowChangingShapes) {
  const support::WatchDog dog("changing shapes");
  // The first sample determines the number of columns, so each micro-batch has its own shapes.
  const auto make = between_linears([](nn::Layers& net) {
    net.add("cut", [](at::Tensor x) {
      const auto columns = 1 + (x[0][0].item<double>() > 0 ? x.size(0) : 0);
      return x.narrow(1, 0, std::min<std::int64_t>(columns, width));
    });
    net.add("sum", [](at::Tensor x) { return x.sum(1, true).expand({x.size(0), width}); });
  });
  const nn::Layers net = make();
  Pipeline pipeline(net, {.devices = virtual_devices(2),
                          .balance = {2, 2},
                          .micro_batches = 3,
                          .schedule = "1f1b",
                          .recompute = Recompute::ExceptLast});
  for (const std::int64_t samples : {7, 3, 1, 11, 2}) {
    SCOPED_TRACE(samples);
    const at::Tensor x = input(samples);
    const auto expected = oracle::looped(make(), x, target(samples), nn::cross_entropy(), 3);
    pipeline.zero_grad();
    const auto result = pipeline.step(x, target(samples), nn::cross_entropy());
    oracle::expect_same(expected, oracle::collect(net, result.loss, {}, x));
    EXPECT_EQ(result.micro_batches, std::min<std::int64_t>(3, samples));
    EXPECT_EQ(result.weight, static_cast<double>(samples));
  }
}

nn::Layers two_in_two_out() {
  torch::manual_seed(4);
  nn::Layers net(2);
  net.add("mix", [](at::Tensor a, at::Tensor b) { return a + 2 * b; }).keep_output("mixed");
  net.add("linear", linear());
  net.add("tanh", torch::nn::Tanh());
  net.also_return("mixed");
  return net;
}

TEST(Boundaries, SupportSeveralInputsAndOutputs) {
  const at::Tensor a = input(5).requires_grad_();
  const at::Tensor b = (3 * input(5)).detach().requires_grad_();
  Pipeline pipeline(two_in_two_out(),
                    {.devices = virtual_devices(3), .balance = {1, 1, 1}, .micro_batches = 2});
  const nn::Values outputs = pipeline.forward(nn::Values{a, b});
  ASSERT_EQ(outputs.size(), 2u);
  (outputs[0].sum() + 2 * outputs[1].sum()).backward();
  const at::Tensor c = a.detach().clone().requires_grad_();
  const at::Tensor d = b.detach().clone().requires_grad_();
  const nn::Values expected = two_in_two_out().forward(nn::Values{c, d});
  (expected[0].sum() + 2 * expected[1].sum()).backward();
  EXPECT_LT(distance(outputs[0], expected[0]), 1e-10);
  EXPECT_LT(distance(outputs[1], expected[1]), 1e-10);
  EXPECT_LT(distance(a.grad(), c.grad()), 1e-10);
  EXPECT_LT(distance(b.grad(), d.grad()), 1e-10);
  EXPECT_THAT(message_of<UsageError>([&] { pipeline.forward(a); }),
              HasSubstr("takes 2 input tensors, 1 were given"));
  EXPECT_EQ(pipeline.evaluate(nn::Values{a, b}).size(), 2u);
}

nn::Layers with_batch_norm() {
  torch::manual_seed(4);
  nn::Layers net;
  net.add("first", linear());
  torch::nn::BatchNorm1d norm(width);
  norm->to(at::kDouble);
  net.add("norm", norm);
  net.add("drop", torch::nn::Dropout(0.5));
  net.add("last", linear());
  return net;
}

TEST(Evaluate, EqualsPlainModelInEvaluationMode) {
  for (const auto& devices :
       {virtual_devices(2), std::vector<Device>{cpu_device(), cpu_device()}}) {
    const nn::Layers net = with_batch_norm();
    Pipeline pipeline(net, {.devices = devices, .balance = {2, 2}, .micro_batches = 3});
    pipeline.step(input(7), target(7), nn::cross_entropy());
    const auto buffers = oracle::to_map(net.named_buffers());
    const auto number = pipeline.step_number();
    const at::Tensor output = pipeline.evaluate(input(7));
    EXPECT_FALSE(output.requires_grad());
    EXPECT_EQ(pipeline.step_number(), number);
    EXPECT_EQ(oracle::difference(buffers, oracle::to_map(net.named_buffers())), 0);
    EXPECT_TRUE(net.graph().layers[1].module->is_training());

    nn::Layers plain = with_batch_norm();
    oracle::looped(plain, input(7), target(7), nn::cross_entropy(), 3);  // updates the statistics
    plain.eval();
    EXPECT_LT(distance(plain.forward(input(7)), output), 1e-10);
  }
}

TEST(Evaluate, AllowsTrainingAfterwards) {
  const nn::Layers net = with_batch_norm();
  Pipeline pipeline(net, {.devices = virtual_devices(2), .balance = {2, 2}, .micro_batches = 3});
  pipeline.evaluate(input(7));
  const auto expected =
      oracle::looped(with_batch_norm(), input(7), target(7), nn::cross_entropy(), 3);
  const auto result = pipeline.step(input(7), target(7), nn::cross_entropy());
  oracle::expect_same(expected, oracle::collect(net, result.loss, {}, input(7)));
}

TEST(Evaluate, RestoresModeOfEveryModule) {
  const nn::Layers net = with_batch_norm();
  net.graph().layers[1].module->eval();
  Pipeline pipeline(net, {.devices = virtual_devices(2), .balance = {2, 2}});
  pipeline.evaluate(input(3));
  EXPECT_FALSE(net.graph().layers[1].module->is_training());
  EXPECT_TRUE(net.graph().layers[2].module->is_training());
}

TEST(Evaluate, ForwardUnderNoGradKeepsNoGraph) {
  const nn::Layers net = chain(2, width);
  Pipeline pipeline(net, {.devices = virtual_devices(2), .balance = {2, 1}, .micro_batches = 3});
  const at::NoGradGuard no_grad;
  const at::Tensor output = pipeline.forward(input(7));
  EXPECT_FALSE(output.requires_grad());
  EXPECT_LT(distance(output, chain(2, width).forward(input(7))), 1e-10);
  EXPECT_THAT(
      message_of<UsageError>([&] { pipeline.step(input(7), target(7), nn::cross_entropy()); }),
      HasSubstr("under no_grad"));
}

// Counts micro-batches. A consumer must get the count at the time of its micro-batch.
struct CounterImpl : torch::nn::Module {
  CounterImpl() { count = register_buffer("count", torch::zeros({1, width}, at::kDouble)); }
  std::tuple<at::Tensor, at::Tensor> forward(at::Tensor x) {
    const at::NoGradGuard no_grad;
    count.add_(1);
    return {x, count};
  }
  at::Tensor count;
};

TEST(Boundaries, ConsumersGetBufferOfTheirMicroBatch) {
  for (const auto& devices :
       {virtual_devices(2), std::vector<Device>{cpu_device(), cpu_device()}}) {
    for (const Recompute recompute : {Recompute::Never, Recompute::Always}) {
      nn::Layers net;
      net.add("count", std::make_shared<CounterImpl>()).keep_output("n", 1).pass_on({0});
      net.add("one", [](at::Tensor x, at::Tensor n) { return x * 0 + n; }).take("n");
      net.add("two", [](at::Tensor x, at::Tensor n) { return x * 10 + n; }).take("n");
      Pipeline pipeline(
          net, {.devices = devices, .balance = {1, 2}, .micro_batches = 4, .recompute = recompute});
      const at::Tensor y = pipeline.forward(input(4)).cpu().select(1, 0);
      EXPECT_TRUE(y.equal(torch::tensor({11.0, 22.0, 33.0, 44.0}, at::kDouble))) << y;
    }
  }
}

// autograd may make the first gradient of `table` a view of its input.
struct AddTableImpl : torch::nn::Module {
  AddTableImpl() { table = register_parameter("table", torch::zeros({3, width}, at::kDouble)); }
  at::Tensor forward(const at::Tensor& x) { return x + table.unsqueeze(0); }
  at::Tensor table;
};

TEST(Boundaries, FirstGradientOwnsItsMemory) {
  const at::Tensor x = torch::arange(72, at::kDouble).reshape({4, 3, width}) / 50 - 0.5;
  const auto square = [](at::Tensor y) { return y.square(); };
  const auto mean = nn::additive(
      "mean", [](const at::Tensor& y, const at::Tensor& /*target*/) { return y.mean(); });
  for (const auto& devices :
       {virtual_devices(2), std::vector<Device>{cpu_device(), cpu_device()}}) {
    torch::manual_seed(3);
    torch::nn::Linear linear(width, width);
    linear->to(at::kDouble);
    const at::Tensor plain = linear->forward(x).detach();
    nn::Layers net;
    net.add("linear", linear);
    net.add("add", std::make_shared<AddTableImpl>());
    net.add("square", square);
    Pipeline pipeline(net, {.devices = devices, .balance = {1, 2}, .micro_batches = 4});
    pipeline.step(x, torch::zeros({4}), mean);
    const at::Tensor expected = (plain * 2 / static_cast<double>(plain.numel())).sum({0, 1});
    EXPECT_LE(distance(linear->bias.grad(), expected), 1e-12);
  }
  // Through forward(): the caller's input gradient, and the output gradient that the caller passes.
  nn::Layers net;
  net.add("square", square);
  net.add("add", std::make_shared<AddTableImpl>());
  Pipeline pipeline(net, {.micro_batches = 4});
  const at::Tensor leaf = x.clone().requires_grad_();
  const at::Tensor given = torch::ones_like(x);
  pipeline.forward(leaf).backward(given);
  EXPECT_TRUE(given.equal(torch::ones_like(x)));
  EXPECT_LE(distance(leaf.grad(), 2 * x), 1e-12);
  const at::Tensor table = net.parameters()[0].grad();
  EXPECT_EQ(table.storage().nbytes(), table.nbytes());
  EXPECT_LE(distance(table, torch::full_like(table, 4)), 1e-12);
}

// at::linear() chooses its kernel by the strides of its input.
TEST(Boundaries, RecomputedLayersSeeTheStridesOfTheFirstRun) {
  const auto x = torch::arange(12, torch::kDouble).view({1, 3, 4});
  const at::Tensor first = torch::randn({8, 4}, torch::kDouble).requires_grad_();
  const at::Tensor second = torch::randn({4, 4}, torch::kDouble).requires_grad_();
  const at::Tensor bias = torch::randn({4}, torch::kDouble).requires_grad_();
  const at::Tensor half = at::linear(x, first).chunk(2, -1)[0];
  at::linear(half, second, bias).square().mean().backward();
  const std::vector<at::Tensor> expected = {first.grad(), second.grad(), bias.grad()};

  for (const bool two_stages : {false, true})
    for (const int segments : {0, 2})
      for (const Recompute recompute : {Recompute::Never, Recompute::Always}) {
        if (segments > 0 && (two_stages || recompute == Recompute::Always)) continue;
        SCOPED_TRACE(text(two_stages ? 2 : 1, " stages, ", segments, " segments, recompute ",
                          schedule::to_string(recompute)));
        std::vector<std::vector<std::int64_t>> strides;
        nn::Layers net;
        net.add("half", [&](at::Tensor value) { return at::linear(value, first).chunk(2, -1)[0]; });
        net.add("linear", [&](at::Tensor value) {
          strides.push_back(value.strides().vec());
          return at::linear(value, second, bias);
        });
        for (const at::Tensor& weight : {first, second, bias}) weight.mutable_grad() = at::Tensor();
        Pipeline pipeline(net,
                          {.devices = {cpu_device()},
                           .balance = two_stages ? std::vector<int>{1, 1} : std::vector<int>{2},
                           .recompute = recompute,
                           .checkpoint_segments = segments});
        pipeline.step(x, x, nn::additive("square", [](at::Tensor output, at::Tensor) {
                        return output.square().mean();
                      }));
        const std::vector<at::Tensor> found = {first.grad(), second.grad(), bias.grad()};
        for (std::size_t i = 0; i < found.size(); ++i)
          EXPECT_TRUE(torch::allclose(found[i], expected[i], 1e-12, 1e-12)) << i;
        for (const auto& seen : strides) EXPECT_EQ(seen, half.strides().vec());
      }
}

}  // namespace
}  // namespace trestle
