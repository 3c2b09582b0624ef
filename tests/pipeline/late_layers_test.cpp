#include <gmock/gmock.h>

#include <limits>

#include "support.h"
#include "tests/support/oracle.h"
#include "trestle/base/error.h"
#include "trestle/device/virtual_device.h"

// Models whose layers are factories, and parameters that two layers share.
namespace trestle {
namespace {

using support::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

auto linear(int in, int out) {
  return [=] { return torch::nn::Linear(in, out); };
}

TEST(LateLayers, AreCreatedOneByOneForTheirDevice) {
  const auto devices = virtual_devices(2);
  nn::Layers net(nn::Seed{4});
  std::vector<std::string> made;
  for (int i = 0; i < 4; ++i) {
    net.add("fc" + std::to_string(i), [i, &net, &made] {
      made.push_back("fc" + std::to_string(i));
      // Earlier layers are on their devices already: the whole model is never on the CPU.
      for (const nn::Layer& layer : net.graph().layers) {
        if (layer.name == made.back() || !layer.module.made()) continue;
        for (const at::Tensor& parameter : layer.parameters()) {
          EXPECT_FALSE(parameter.is_cpu()) << layer.name << " while making " << made.back();
        }
      }
      return torch::nn::Linear(3, 3);
    });
  }
  EXPECT_TRUE(made.empty());
  Pipeline pipeline(net, {.devices = devices, .balance = {2, 2}});
  EXPECT_THAT(made, ::testing::ElementsAre("fc0", "fc1", "fc2", "fc3"));
  EXPECT_EQ(pipeline.stage_parameters(0)[0].device(), devices[0].torch);
  EXPECT_EQ(pipeline.stage_parameters(1)[0].device(), devices[1].torch);
}

// The pipeline has its stages already; a new layer would never run.
TEST(LateLayers, RefuseLayersAddedAfterCut) {
  nn::Layers net;
  net.add("a", torch::nn::Linear(2, 2));
  net.add("b", torch::nn::Linear(2, 2));
  Pipeline pipeline(net, {.balance = {1, 1}});
  pipeline.model().add("c", torch::nn::Linear(2, 2));
  EXPECT_THAT(message_of<StateError>([&] {
                pipeline.evaluate({torch::ones({1, 2})});
              }),
              AllOf(HasSubstr("2 layers"), HasSubstr("3")));
}

TEST(LateLayers, OptionErrorsAreFoundBeforeCreation) {
  nn::Layers net;
  int made = 0;
  for (const char* name : {"a", "b"}) {
    net.add(name, [&made] {
      ++made;
      return torch::nn::Linear(2, 2);
    });
  }
  EXPECT_THROW(Pipeline(net, {.balance = {2, 1}}), UsageError);
  EXPECT_THROW(Pipeline(net, {.schedule = "no such"}), UsageError);
  EXPECT_EQ(made, 0);
}

TEST(LateLayers, RefuseUndeclaredSharedParameterAfterCreation) {
  const torch::nn::Linear shared(2, 2);
  nn::Layers net;
  net.add("a", shared);
  net.add("b", [shared] {
    torch::nn::Linear second(2, 2);
    second->weight = second->register_parameter("tied", shared->weight);
    return second;
  });
  EXPECT_THAT(message_of<UsageError>([&] {
                Pipeline(net, {.balance = {1, 1}});
              }),
              HasSubstr("layers 'a' and 'b' share a parameter"));
}

constexpr int words = 11;
constexpr int embedded = 6;

nn::Layers language_model() {
  nn::Layers net(nn::Seed{3});
  net.add("embed", [] { return torch::nn::Embedding(words, embedded); });
  net.add("hidden", linear(embedded, embedded));
  net.add("head",
          [] { return torch::nn::Linear(torch::nn::LinearOptions(embedded, words).bias(false)); });
  net.add("scores", [](at::Tensor x) { return x.transpose(1, 2); });
  net.tie("head.weight", "embed.weight");
  return oracle::in_double(net);
}

TEST(Ties, HavePlainModelsGradientsWithinStage) {
  const at::Tensor input = at::arange(24).reshape({8, 3}).remainder(words);
  const at::Tensor target = input.add(1).remainder(words);
  const auto expected = oracle::whole_batch(language_model(), input, target, nn::cross_entropy());
  for (const Recompute recompute : {Recompute::Never, Recompute::Always}) {
    const nn::Layers net = language_model();
    Pipeline pipeline(net, {.devices = virtual_devices(2),
                            .balance = {3, 1},
                            .micro_batches = 4,
                            .schedule = "1f1b",
                            .recompute = recompute});
    const double loss = pipeline.step(input, target, nn::cross_entropy()).loss;
    oracle::expect_same(expected, oracle::collect(net, loss, {}, input));
    EXPECT_EQ(pipeline.parameters().size(), 3u);
    EXPECT_EQ(pipeline.stage_parameters(0).size(), 3u);
    EXPECT_EQ(pipeline.stage_parameters(1).size(), 0u);
  }
}

// Gradients across stages: tied_weights_test.cpp.
TEST(Ties, CreateTheirOwnerOnceAndMoveCopiesToTheirStages) {
  const auto devices = virtual_devices(2);
  const nn::Layers net = language_model();
  const Pipeline pipeline(net, {.devices = devices, .balance = {2, 2}});
  EXPECT_EQ(pipeline.parameters().size(), 3u);
  EXPECT_EQ(pipeline.stage_parameters(0).size(), 3u);
  EXPECT_EQ(pipeline.stage_parameters(1).size(), 0u);
  const at::Tensor owner = net.graph().layers[0].module->named_parameters()["weight"];
  const at::Tensor copy = net.graph().layers[2].module->named_parameters()["weight"];
  EXPECT_EQ(owner.device(), devices[0].torch);
  EXPECT_EQ(copy.device(), devices[1].torch);
  EXPECT_TRUE(owner.cpu().equal(copy.cpu()));
}

TEST(Ties, DoNotRestrictMeasuredBalance) {
  const at::Tensor input = at::arange(24).reshape({8, 3}).remainder(words);
  Pipeline pipeline(language_model(), {.devices = virtual_devices(4), .plan = {.sample = {input}}});
  EXPECT_THAT(pipeline.balance(), ::testing::ElementsAre(1, 1, 1, 1));
}

TEST(ClipGradNorm, EqualsTorchOnPlainModel) {
  const auto make = [] {
    nn::Layers net(nn::Seed{5});
    for (const char* name : {"a", "b", "c"}) net.add(name, linear(4, 4));
    return oracle::in_double(net);
  };
  torch::manual_seed(1);
  const at::Tensor input = at::randn({8, 4}, at::kDouble);
  const at::Tensor target = at::randn({8, 4}, at::kDouble);
  for (const double p : {1.0, 2.0, std::numeric_limits<double>::infinity()}) {
    const nn::Layers plain = make();
    nn::mean_squared_error().value(plain.forward(input), target).backward();
    const double norm = torch::nn::utils::clip_grad_norm_(plain.parameters(), 0.01, p);
    const nn::Layers net = make();
    Pipeline pipeline(net,
                      {.devices = virtual_devices(3), .balance = {1, 1, 1}, .micro_batches = 2});
    pipeline.step(input, target, nn::mean_squared_error());
    EXPECT_NEAR(pipeline.clip_grad_norm(0.01, {.p = p}), norm, 1e-12);
    EXPECT_LT(oracle::difference(oracle::gradients_of(plain.named_parameters()),
                                 oracle::gradients_of(pipeline.named_parameters())),
              oracle::rounding);
  }
}

}  // namespace
}  // namespace trestle
