// Behaviours that torchgpipe's users rely on and no other test covers. T-numbers:
// docs/torchgpipe.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>

#include "tests/pipeline/support.h"
#include "tests/support/oracle.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/nn/checkpointing.h"

namespace trestle {
namespace {

using support::chain;
using support::input;
using support::message_of;
using support::target;
using support::width;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

// Records the mode of each forward.
struct ModeImpl : torch::nn::Module {
  explicit ModeImpl(std::vector<bool>* seen) : seen(seen) {}
  at::Tensor forward(const at::Tensor& x) {
    seen->push_back(is_training());
    return x;
  }
  std::vector<bool>* seen;
};

int count(const schedule::Timeline& timeline, schedule::Kind kind) {
  int number = 0;
  for (const auto& event : timeline.events) number += event.action.kind == kind ? 1 : 0;
  return number;
}

// The output itself serves as the output's gradient, so that each element has another one.
TEST(Torchgpipe, T4SkipOverLayerGivesSameOutputAndInputGradientUnderEveryCut) {
  const auto make = [] {
    torch::manual_seed(2);
    nn::Layers net;
    net.add("layer1", torch::nn::Linear(width, width)).keep_output("skip");
    net.add("layer2", torch::nn::Linear(width, width));
    net.add("layer3", [](at::Tensor x, at::Tensor skip) { return (x * skip).tanh(); }).take("skip");
    return oracle::in_double(net);
  };
  const at::Tensor x = input().requires_grad_();
  const at::Tensor expected = make().forward(x);
  expected.backward(expected.detach());
  for (const std::vector<int>& balance : {std::vector<int>{3}, {1, 2}, {2, 1}, {1, 1, 1}}) {
    for (const Recompute recompute : {Recompute::Never, Recompute::ExceptLast, Recompute::Always}) {
      SCOPED_TRACE(text(join(balance, ":"), ", ", schedule::to_string(recompute)));
      const nn::Layers net = make();
      Pipeline pipeline(net, {.devices = virtual_devices(static_cast<int>(balance.size())),
                              .balance = balance,
                              .micro_batches = 3,
                              .recompute = recompute});
      const at::Tensor own = input().requires_grad_();
      const at::Tensor y = pipeline.forward(own);
      y.backward(y.detach());
      EXPECT_LE(support::distance(expected, y), 1e-12);
      EXPECT_LE(support::distance(x.grad(), own.grad()), 1e-12);
    }
  }
}

TEST(Torchgpipe, T5SkipCarriesNoneAcrossStages) {
  for (const Recompute recompute : {Recompute::Never, Recompute::Always}) {
    nn::Layers net = chain(1);
    net.add("fork", [](at::Tensor x) { return std::tuple(x, std::optional<at::Tensor>()); })
        .keep_output("nothing", 1)
        .pass_on({0});
    net.add("between", [](at::Tensor x) { return x * 2; });
    net.add("join",
            [](at::Tensor x, std::optional<at::Tensor> nothing) { return nothing ? x * 0 : x; })
        .take("nothing");
    const auto expected = oracle::whole_batch(net, input(), target(), nn::cross_entropy());
    net.zero_grad();
    Pipeline pipeline(net, {.devices = virtual_devices(3),
                            .balance = {2, 1, 1},
                            .micro_batches = 3,
                            .recompute = recompute});
    const double loss = pipeline.step(input(), target(), nn::cross_entropy()).loss;
    EXPECT_NEAR(loss, expected.loss, 1e-12);
    EXPECT_LE(oracle::difference(expected.gradients, oracle::gradients_of(net.named_parameters())),
              1e-12);

    // The skip has an empty route; the main route carries data.
    const auto costs = pipeline.profile({input()}, target(), nn::cross_entropy());
    const auto routes = pipeline.schedule().routes;
    ASSERT_EQ(costs.routes.size(), 3u);
    for (std::size_t r = 0; r < routes.size(); ++r)
      EXPECT_EQ(costs.routes[r].bytes == 0, routes[r].skip) << routes[r].name;

    // A gradient of ones passes by the empty skip.
    const at::Tensor x = input().requires_grad_();
    const at::Tensor same = input().requires_grad_();
    pipeline.forward(x).sum().backward();
    for (const auto& layer : net.graph().layers) layer.to(at::kCPU);
    net.forward(same).sum().backward();
    EXPECT_LE(support::distance(same.grad(), x.grad()), 1e-12);
  }
}

TEST(Torchgpipe, T57BalanceIsMeasuredInTrainingModeAndModeIsRestored) {
  std::vector<bool> seen;
  nn::Layers net = chain(2);
  net.add("mode", std::make_shared<ModeImpl>(&seen));
  net.eval();
  Pipeline pipeline(net, {.devices = virtual_devices(2), .plan = {.sample = {input()}}});
  EXPECT_FALSE(seen.empty());
  EXPECT_THAT(seen, ::testing::Each(true));
  seen.clear();
  pipeline.forward(input());
  EXPECT_THAT(seen, ::testing::Each(false));
}

TEST(Torchgpipe, T59BalanceMeasuresTuplesBetweenLayers) {
  nn::Layers net;
  net.add("fork", [](at::Tensor x) { return std::tuple(x * 2, x.detach()); });
  net.add("linear", [](at::Tensor x, at::Tensor y) { return std::tuple(x + y, y); });
  net.add("join", [](at::Tensor x, at::Tensor y) { return x * y; });
  Pipeline pipeline(net, {.devices = virtual_devices(2), .plan = {.sample = {input()}}});
  EXPECT_EQ(pipeline.balance().size(), 2u);
}

TEST(Torchgpipe, T61MeasuredBalanceKeepsExistingGradients) {
  const nn::Layers net = chain(2);
  net.forward(input()).square().sum().backward();
  const auto before = oracle::gradients_of(net.named_parameters());
  const Pipeline pipeline(net, {.devices = virtual_devices(2), .plan = {.sample = {input()}}});
  EXPECT_EQ(oracle::difference(before, oracle::gradients_of(net.named_parameters())), 0);
}

TEST(Torchgpipe, T70LayerCanQueryRecomputation) {
  using nn::Checkpointing;
  std::vector<Checkpointing> seen;
  nn::Layers net = chain(1);
  net.add("ask", [&](at::Tensor x) {
    seen.push_back(nn::checkpointing());
    return x * 1;
  });
  const auto answers = [&](Recompute recompute) {
    seen.clear();
    Pipeline pipeline(net, {.devices = virtual_devices(1), .recompute = recompute});
    pipeline.step(input(), target(), nn::cross_entropy());
    return seen;
  };
  EXPECT_THAT(answers(Recompute::Always),
              ElementsAre(Checkpointing::First, Checkpointing::Recompute));
  EXPECT_THAT(answers(Recompute::Never), ElementsAre(Checkpointing::None));  // T71
  EXPECT_EQ(nn::checkpointing(), Checkpointing::None);
}

TEST(Torchgpipe, T102RecomputesOnlyForGradients) {
  Pipeline pipeline(chain(2), {.devices = virtual_devices(2),
                               .balance = {2, 1},
                               .micro_batches = 2,
                               .recompute = Recompute::Always});
  pipeline.step(input(), target(), nn::cross_entropy());
  EXPECT_EQ(count(pipeline.timeline(), schedule::Kind::Recompute), 4);
  pipeline.evaluate(input());
  EXPECT_EQ(count(pipeline.timeline(), schedule::Kind::Recompute), 0);
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(pipeline.forward(input()).requires_grad());
  EXPECT_EQ(count(pipeline.timeline(), schedule::Kind::Recompute), 0);
}

TEST(Torchgpipe, T113RefusesMoreDevicesThanStages) {
  EXPECT_THAT(message_of<UsageError>([] {
                Pipeline(chain(2), {.devices = virtual_devices(3), .balance = {2, 1}});
              }),
              HasSubstr("balance has 2 stages, but 3 devices are given"));
}

// A user's own layers, whose modules the user keeps, with a buffer.
struct Moved {
  torch::nn::Linear first{width, width};
  torch::nn::BatchNorm1d norm{width};
  torch::nn::Linear last{width, width};
  nn::Layers net;

  Moved() {
    torch::manual_seed(3);
    net.add("first", first);
    net.add("norm", norm);
    net.add("last", last);
    torch::manual_seed(5);
    for (auto& parameter : net.parameters()) torch::nn::init::uniform_(parameter, -1, 1);
  }
};

TEST(Torchgpipe, T115RefusesMovedLayer) {
  struct Move {
    const char* what;
    std::function<void(Moved&, Pipeline&)> move;
    const char* refusal;
  };
  const at::Device other = virtual_devices(3)[2].torch;
  const Move moves[] = {
      {"the model", [](Moved&, Pipeline& p) { p.model().to(at::kCPU); },
       "'first.weight' is on cpu, but stage 0, the stage of layer 'first', is on virtual:0"},
      {"the model, to a stage's device",
       [&](Moved&, Pipeline& p) { p.model().to(virtual_devices(1)[0].torch); },
       "'last.weight' is on virtual:0, but stage 1, the stage of layer 'last', is on virtual:1"},
      {"a layer", [&](Moved& m, Pipeline&) { m.last->to(other); },
       "'last.weight' is on virtual:2, but stage 1, the stage of layer 'last', is on virtual:1"},
      {"a layer, and its type", [&](Moved& m, Pipeline&) { m.last->to(other, at::kDouble); },
       "'last.weight' is on virtual:2"},
      {"a parameter", [](Moved& m, Pipeline&) { m.first->bias.set_data(m.first->bias.cpu()); },
       "'first.bias' is on cpu"},
      {"a buffer",
       [](Moved& m, Pipeline&) { m.norm->running_var.set_data(m.norm->running_var.cpu()); },
       "'norm.running_var' is on cpu"}};
  const at::Tensor x = input(at::kFloat);
  for (const Move& move : moves) {
    for (const bool before_the_first_step : {true, false}) {
      SCOPED_TRACE(move.what);
      Moved model;
      Pipeline pipeline(model.net, {.devices = virtual_devices(2), .balance = {2, 1}});
      if (!before_the_first_step) pipeline.step(x, target(), nn::cross_entropy());
      const auto number = pipeline.step_number();
      move.move(model, pipeline);
      const auto refuses = [&](const char* call, auto action) {
        EXPECT_THAT(message_of<StateError>(action), HasSubstr(move.refusal)) << call;
      };
      refuses("step", [&] { pipeline.step(x, target(), nn::cross_entropy()); });
      refuses("forward", [&] { pipeline.forward(x); });
      refuses("evaluate", [&] { pipeline.evaluate(x); });
      refuses("profile", [&] { pipeline.profile({x}, target(), nn::cross_entropy()); });
      EXPECT_EQ(pipeline.step_number(), number);
      // Back on its device, the model trains again; module->to() does not move gradients.
      pipeline.zero_grad();
      model.first->to(pipeline.device(0).torch, at::kFloat);
      model.norm->to(pipeline.device(0).torch, at::kFloat);
      model.last->to(pipeline.device(1).torch, at::kFloat);
      pipeline.step(x, target(), nn::cross_entropy());
    }
  }
}

TEST(Torchgpipe, T115TrainsCastModelAsPlainCastModel) {
  for (const at::ScalarType type : {at::kDouble, at::kBFloat16, at::kHalf}) {
    for (const Recompute recompute : {Recompute::Never, Recompute::Always}) {
      for (const bool after_a_step : {false, true}) {
        SCOPED_TRACE(c10::toString(type));
        Moved plain;
        Moved model;
        Pipeline pipeline(model.net, {.devices = virtual_devices(2),
                                      .balance = {2, 1},
                                      .micro_batches = 2,
                                      .recompute = recompute});
        const auto step = [&](at::ScalarType input_type) {
          const at::Tensor x = input(input_type);
          const auto expected = oracle::looped(plain.net, x, target(), nn::cross_entropy(), 2);
          const double loss = pipeline.step(x, target(), nn::cross_entropy()).loss;
          EXPECT_EQ(loss, expected.loss);
          EXPECT_EQ(oracle::difference(expected.gradients,
                                       oracle::gradients_of(model.net.named_parameters())),
                    0);
          EXPECT_EQ(oracle::difference(expected.buffers, oracle::to_map(model.net.named_buffers())),
                    0);
        };
        if (after_a_step) step(at::kFloat);
        for (Moved* each : {&plain, &model}) {
          each->net.zero_grad();
          for (const auto& layer : each->net.graph().layers) layer.module->to(type);
        }
        step(type);
        for (const auto& parameter : pipeline.parameters())
          EXPECT_EQ(parameter.grad().scalar_type(), type);
      }
    }
  }
}

TEST(Torchgpipe, T116RefusesModelWithoutLayers) {
  EXPECT_THAT(message_of<UsageError>([] { Pipeline(nn::Layers(), {}); }), HasSubstr("0 layers"));
}

}  // namespace
}  // namespace trestle
