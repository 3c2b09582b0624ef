// Measurements of layers for a balance. T-numbers: torchgpipe's tests.
#include "trestle/pipeline/profile/profile_layers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/pipeline/conv_net.h"
#include "tests/support/oracle.h"
#include "trestle/plan/balance.h"
#include "trestle/plan/stage_costs.h"

namespace another_library {

// A function of another library: it computes both gradients whenever it runs.
struct ForeignProduct : torch::autograd::Function<ForeignProduct> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& weight) {
    context->save_for_backward({x, weight});
    return x.matmul(weight);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 torch::autograd::variable_list gradients) {
    const auto saved = context->get_saved_variables();
    return {gradients[0].matmul(saved[1].t()), saved[0].t().matmul(gradients[0])};
  }
};

}  // namespace another_library

namespace trestle {
namespace {

using namespace support;
using ::testing::ElementsAre;

// Returns `count` numbers per row: activations without parameters. sin() saves its input.
struct WidenImpl : torch::nn::Module {
  explicit WidenImpl(std::int64_t count) : count(count) {}
  at::Tensor forward(const at::Tensor& x) {
    return x.narrow(1, 0, 1).expand({-1, count}).contiguous().sin();
  }
  std::int64_t count;
};
TORCH_MODULE(Widen);

struct HeavyImpl : torch::nn::Module {
  explicit HeavyImpl(std::int64_t count)
      : weights(register_parameter("weights", torch::zeros({count}))) {}
  at::Tensor forward(const at::Tensor& x) { return x + weights.sum(); }
  at::Tensor weights;
};
TORCH_MODULE(Heavy);

struct ForeignImpl : torch::nn::Module {
  explicit ForeignImpl(std::int64_t width)
      : weight(register_parameter("weight", torch::eye(width))) {}
  at::Tensor forward(const at::Tensor& x) {
    return another_library::ForeignProduct::apply(x, weight);
  }
  at::Tensor weight;
};
TORCH_MODULE(Foreign);

at::Device device() { return virtual_devices(2)[0].torch; }

// Each round of measuring a layer starts from the sample's value, even if layers change shapes or
// write in place.
TEST(ProfileLayers, T51EachRoundStartsFromSample) {
  std::vector<std::pair<std::vector<std::int64_t>, double>> seen[3];
  const auto note = [&](int layer, const at::Tensor& x) {
    seen[layer].emplace_back(x.sizes().vec(), x.sum().item<double>());
  };
  torch::nn::Conv2d conv(torch::nn::Conv2dOptions(3, 2, 3));
  torch::nn::Linear linear(2 * 30 * 30, 1);
  nn::Layers net;
  net.add("conv", conv);
  net.add("add", [&](at::Tensor x) {
    note(0, x);
    return x.add_(1);
  });
  net.add("flatten", [&](at::Tensor x) {
    note(1, x);
    return x.flatten(1);
  });
  net.add("linear", linear);
  net.add("last", [&](at::Tensor x) {
    note(2, x);
    return x * 2;
  });
  const auto profile = profile_layers(net, {images(2)}, device());
  EXPECT_EQ(plan::balance_by_time(profile, 2).size(), 2u);
  const std::vector<std::int64_t> shapes[] = {{2, 2, 30, 30}, {2, 2, 30, 30}, {2, 1}};
  for (int layer = 0; layer < 3; ++layer) {
    ASSERT_GE(seen[layer].size(), 3u);  // a warm-up and at least two rounds
    for (const auto& [shape, sum] : seen[layer]) {
      EXPECT_EQ(shape, shapes[layer]);
      EXPECT_EQ(sum, seen[layer][0].second) << "layer " << layer;
    }
  }
}

TEST(ProfileLayers, T52CutFollowsActivationSizes) {
  for (const bool reversed : {false, true}) {
    nn::Layers net;
    net.add("first", Heavy(1));  // needs a gradient; otherwise nothing would be saved
    for (int i = 0; i < 6; ++i)
      net.add("w" + std::to_string(i), Widen(1000 * (reversed ? 6 - i : i + 1)));
    const auto profile = profile_layers(net, {at::ones({4, 1})}, device());
    EXPECT_THAT(plan::balance_by_size(profile, 2, {.micro_batches = 8}),
                reversed ? ElementsAre(3, 4) : ElementsAre(5, 2));
  }
}

TEST(ProfileLayers, T53CutFollowsParameterSizes) {
  for (const bool reversed : {false, true}) {
    nn::Layers net;
    for (int i = 0; i < 6; ++i)
      net.add("w" + std::to_string(i), Heavy(1000 * (reversed ? 6 - i : i + 1)));
    const auto profile = profile_layers(net, {at::ones({1, 1})}, device());
    EXPECT_EQ(profile.layers[0].parameters, reversed ? 24000 : 4000);
    EXPECT_THAT(plan::balance_by_size(profile, 2),
                reversed ? ElementsAre(2, 4) : ElementsAre(4, 2));
  }
}

TEST(ProfileLayers, FindsSavedTensorsOfLayers) {
  nn::Layers net;
  net.add("linear", torch::nn::Linear(16, 32));  // saves its input, not its output
  net.add("tanh", torch::nn::Tanh());            // saves its output
  net.add("drop", torch::nn::Dropout(0.5));      // saves a mask
  net.add("flatten", torch::nn::Flatten());      // a view: saves nothing
  net.add("sum", [](at::Tensor x) { return x.sum(1); });
  const auto profile = profile_layers(net, {at::ones({64, 16})}, device());
  ASSERT_EQ(profile.values.size(), 6u);
  EXPECT_THAT(profile.values[0].saved_by, ElementsAre(0));
  EXPECT_EQ(profile.values[0].bytes, 64 * 16 * 4);
  EXPECT_THAT(profile.values[1].saved_by, ElementsAre());
  EXPECT_THAT(profile.values[2].saved_by, ElementsAre(1));
  EXPECT_GE(profile.layers[2].inner, 64 * 32);
  EXPECT_EQ(profile.layers[0].inner, 0);
  EXPECT_EQ(profile.layers[3].inner, 0);
  EXPECT_GT(profile.seconds(), 0);
  EXPECT_THAT(profile.values[5].to, ElementsAre(5));  // the caller
}

TEST(ProfileLayers, T55T56LeavesModelUnchanged) {
  nn::Layers net = conv_net();
  net.forward(images(4)).sum().backward();
  net.eval();
  const auto parameters = oracle::to_map(net.named_parameters());
  const auto gradients = oracle::gradients_of(net.named_parameters());
  const auto buffers = oracle::to_map(net.named_buffers());
  const auto held = memory_usage(device()).current;
  profile_layers(net, {images(4)}, device());
  EXPECT_EQ(memory_usage(device()).current, held);
  EXPECT_EQ(oracle::difference(parameters, oracle::to_map(net.named_parameters())), 0);
  EXPECT_EQ(oracle::difference(gradients, oracle::gradients_of(net.named_parameters())), 0);
  EXPECT_EQ(oracle::difference(buffers, oracle::to_map(net.named_buffers())), 0);
  for (const auto& parameter : net.parameters()) EXPECT_TRUE(parameter.is_cpu());
  for (const auto& layer : net.graph().layers) {
    if (!layer.module) continue;
    EXPECT_FALSE(layer.module->is_training()) << layer.name;
  }
}

// As in a training: behind a frozen layer alone, a layer computes no gradient of its input.
TEST(ProfileLayers, InputsBehindFrozenLayersHaveNoGradient) {
  for (const bool trained : {false, true}) {
    torch::nn::Linear first(4, 4), second(4, 2);
    for (const at::Tensor& parameter : first->parameters()) parameter.set_requires_grad(trained);
    int calls = 0;
    nn::Layers net;
    net.add("first", first);
    net.add("between", [&](at::Tensor x) {
      EXPECT_EQ(x.requires_grad(), trained);
      ++calls;
      return x.sin();
    });
    net.add("second", [&](at::Tensor x) {
      EXPECT_EQ(x.requires_grad(), trained);
      return second(x);
    });
    profile_layers(net.graph(), {torch::ones({2, 4})}, at::kCPU);
    EXPECT_GT(calls, 0);
  }
}

TEST(ProfileLayers, T60MeasuresTuplesAndSkips) {
  nn::Layers net;
  net.add("fork", [](at::Tensor x) { return std::tuple(x * 2, x.detach()); });
  net.add("join", [](at::Tensor x, at::Tensor y) { return x + y; }).keep_output("s");
  net.add("linear", torch::nn::Linear(8, 8));
  net.add("last", [](at::Tensor x, at::Tensor s) { return x * s; }).take("s");
  const auto profile = profile_layers(net, {at::ones({4, 8})}, device());
  EXPECT_THAT(profile.values[3].to, ElementsAre(2, 3));
  EXPECT_EQ(plan::balance_by_size(profile, 2).size(), 2u);
}

// Only one layer at a time is on the device.
TEST(ProfileLayers, MeasuresModelLargerThanAnyDevice) {
  nn::Layers net(nn::Seed{1});
  for (int i = 0; i < 8; ++i)
    net.add("w" + std::to_string(i), [] { return torch::nn::Linear(256, 256); });
  reset_peak_memory(device());
  const auto before = memory_usage(device()).current;
  const auto profile = profile_layers(net, {at::ones({4, 256})}, device());
  const Bytes one = profile.layers[0].parameters;
  EXPECT_LT(memory_usage(device()).peak - before, 4 * one);  // of eight
  const auto cut = plan::balance_within(profile, {8 * one, 0});
  EXPECT_LE(plan::stage_bytes(profile, 0, cut[0], {}), 8 * one);
}

TEST(ProfileLayers, CountsValuesAsSavedOnPlainCpu) {
  const auto profile = profile_layers(conv_net(), {images(2)}, at::kCPU);
  EXPECT_GT(profile.seconds(), 0);
  EXPECT_THAT(profile.values[0].saved_by, ElementsAre(0));
  EXPECT_EQ(plan::balance_by_size(profile, 3).size(), 3u);
}

// An identity gives its argument on. Its result is no more memory, and a stage counts it once.
TEST(ProfileLayers, ResultsThatAreViewsHaveNoMemoryOfTheirOwn) {
  nn::Layers net;
  net.add("linear", torch::nn::Linear(32, 32));
  net.add("same", [](at::Tensor x) { return x; });
  net.add("square", [](at::Tensor x) { return x * x; });
  net.add("relu", [](at::Tensor x) { return x.relu_(); });
  const auto profile = profile_layers(net, {torch::ones({64, 32})}, device());
  ASSERT_EQ(profile.values.size(), 5u);
  EXPECT_THAT(plan::memory_of_values(profile), ElementsAre(0, 1, 1, 3, 3));
  // The square keeps its argument, which is the linear layer's result; the ReLU keeps its own.
  const auto kept = [&](int value) {
    return profile.values[static_cast<std::size_t>(value)].saved_by;
  };
  EXPECT_THAT(kept(1), ::testing::IsEmpty());
  EXPECT_THAT(kept(2), ElementsAre(2));
  EXPECT_THAT(kept(3), ElementsAre(3));
  EXPECT_EQ(plan::costs_of_cut(profile, {4}).costs.stages[0].saved - profile.values[0].bytes,
            2 * 64 * 32 * 4);  // what the square keeps, and the ReLU's result, the model's output
}

// The simulator takes the times of I and W from here.
TEST(ProfileLayers, CountsABackwardThatIsNotCutAsI) {
  constexpr std::int64_t width = 512;
  nn::Layers net;
  net.add("first", torch::nn::Linear(width, width));
  net.add("linear", torch::nn::Linear(width, width));
  net.add("foreign", Foreign(width));
  const auto profile = profile_layers(net.graph(), {torch::ones({width, width})}, device(), nullptr,
                                      {}, SplitBackwards::Measure);
  const auto &first = *profile.layers[0].split, &linear = *profile.layers[1].split,
             &foreign = *profile.layers[2].split;
  EXPECT_LT(first.input_grad, first.weight_grad);  // nothing needs its input's gradient
  EXPECT_GT(linear.weight_grad, linear.input_grad / 4);
  EXPECT_LT(foreign.weight_grad, foreign.input_grad / 4);
  // W needs the layer's input, its output's gradient and a new gradient of the weight.
  const Bytes weight = width * width * 4;
  EXPECT_GE(linear.kept_for_weights, 2 * weight);
  EXPECT_GE(linear.kept_for_weights + linear.transient_weight_grad, 3 * weight);
  EXPECT_LT(linear.kept_for_weights + linear.transient_weight_grad, 4 * weight);
}

}  // namespace
}  // namespace trestle
