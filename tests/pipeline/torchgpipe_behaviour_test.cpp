// What users of torchgpipe rely on and no other test holds. T-numbers: docs/torchgpipe.md.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/pipeline/support.h"
#include "tests/support/oracle.h"
#include "trestle/base/error.h"
#include "trestle/nn/checkpointing.h"

namespace trestle {
namespace {

using support::chain;
using support::input;
using support::message_of;
using support::target;
using support::width;
using testing::ElementsAre;
using testing::HasSubstr;

// Notes in which mode its forward runs.
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

TEST(Torchgpipe, T5NoneCrossesStagesAsASkip) {
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
  }
}

TEST(Torchgpipe, T57ABalanceIsMeasuredInTrainingModeAndTheModelStaysInItsOwn) {
  std::vector<bool> seen;
  nn::Layers net = chain(2);
  net.add("mode", std::make_shared<ModeImpl>(&seen));
  net.eval();
  Pipeline pipeline(net, {.devices = virtual_devices(2), .sample = {input()}});
  EXPECT_FALSE(seen.empty());
  EXPECT_THAT(seen, testing::Each(true));
  seen.clear();
  pipeline.forward(input());
  EXPECT_THAT(seen, testing::Each(false));
}

TEST(Torchgpipe, T59ATupleBetweenLayersIsMeasuredToo) {
  nn::Layers net;
  net.add("fork", [](at::Tensor x) { return std::tuple(x * 2, x.detach()); });
  net.add("linear", [](at::Tensor x, at::Tensor y) { return std::tuple(x + y, y); });
  net.add("join", [](at::Tensor x, at::Tensor y) { return x * y; });
  Pipeline pipeline(net, {.devices = virtual_devices(2), .sample = {input()}});
  EXPECT_EQ(pipeline.balance().size(), 2u);
}

TEST(Torchgpipe, T61GradientsThatAreThereAreLeftAloneByAMeasuredBalance) {
  const nn::Layers net = chain(2);
  net.forward(input()).square().sum().backward();
  const auto before = oracle::gradients_of(net.named_parameters());
  const Pipeline pipeline(net, {.devices = virtual_devices(2), .sample = {input()}});
  EXPECT_EQ(oracle::difference(before, oracle::gradients_of(net.named_parameters())), 0);
}

TEST(Torchgpipe, T70ALayerCanAskWhetherItIsRunAgain) {
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

TEST(Torchgpipe, T102OnlyWhatWantsGradientsIsRecomputed) {
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

TEST(Torchgpipe, T113MoreDevicesThanStagesAreRefused) {
  EXPECT_THAT(message_of<UsageError>([] {
                Pipeline(chain(2), {.devices = virtual_devices(3), .balance = {2, 1}});
              }),
              HasSubstr("balance has 2 stages, but 3 devices are given"));
}

TEST(Torchgpipe, T116AModelWithoutLayersIsRefused) {
  EXPECT_THAT(message_of<UsageError>([] { Pipeline(nn::Layers(), {}); }), HasSubstr("0 layers"));
}

}  // namespace
}  // namespace trestle
