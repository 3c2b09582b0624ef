// Micro-batches given by size, as torch's x.split(size) gives them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/pipeline/support.h"
#include "tests/support/golden.h"
#include "tests/support/oracle.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/device/virtual_device.h"
#include "trestle/models/resnet50.h"

namespace trestle {
namespace {

using support::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

nn::Layers narrow_resnet() {
  return oracle::in_double(models::resnet50({.classes = 5, .width = 2}));
}

// As PyTorch's tutorial does by hand: the plain model over x.split(size), in order.
double looped_by_torchs_split(nn::Layers& net, const at::Tensor& x, const at::Tensor& target,
                              std::int64_t size) {
  const auto pieces = x.split(size), targets = target.split(size);
  const nn::Graph graph = net.graph();
  at::Tensor loss = torch::zeros({}, at::kDouble);
  for (std::size_t m = 0; m < pieces.size(); ++m) {
    const nn::RunKey key{.seed = 7, .micro_batch = static_cast<std::int64_t>(m)};
    const at::Tensor output = nn::run(graph, {pieces[m]}, key).at(0);
    loss = loss + torch::mse_loss(output, targets[m]) *
                      (static_cast<double>(pieces[m].size(0)) / static_cast<double>(x.size(0)));
  }
  loss.backward();
  return loss.item<double>();
}

TEST(SplitSize, TrainsTutorialsResNetAsTorchSplit) {
  const at::Tensor x = golden::formula_input({7, 3, 33, 33}).to(at::kDouble);
  const at::Tensor target = golden::formula_doubles({7, 5}, 3);
  for (const std::int64_t size : {1, 2, 3, 7, 20}) {
    for (const std::string schedule : {"gpipe", "1f1b"}) {
      SCOPED_TRACE(text(schedule, " by ", size));
      nn::Layers plain = narrow_resnet();
      const double loss = looped_by_torchs_split(plain, x, target, size);
      nn::Layers net = narrow_resnet();
      Pipeline pipeline(net, {.devices = virtual_devices(2),
                              .balance = {11, 11},
                              .schedule = schedule,
                              .recompute = Recompute::ExceptLast,
                              .plan = {.split_size = static_cast<int>(size)},
                              .numerics = {.seed = 7}});
      const StepResult result = pipeline.step(x, target, nn::mean_squared_error());
      EXPECT_EQ(result.micro_batches, static_cast<int>(x.split(size).size()));
      EXPECT_NEAR(result.loss, loss, 1e-12);
      EXPECT_LT(oracle::difference(oracle::gradients_of(plain.named_parameters()),
                                   oracle::gradients_of(net.named_parameters())),
                oracle::rounding);
      EXPECT_LT(oracle::difference(oracle::to_map(plain.named_buffers()),
                                   oracle::to_map(net.named_buffers())),
                oracle::rounding);
    }
  }
}

TEST(SplitSize, SplitsForwardAndEvaluationAlike) {
  nn::Layers net = support::chain(3);
  Pipeline pipeline(net,
                    {.devices = virtual_devices(2), .balance = {3, 2}, .plan = {.split_size = 3}});
  const at::Tensor x = support::input(8);
  const at::Tensor expected = support::chain(3).forward(x);
  EXPECT_LT(support::distance(pipeline.forward(x), expected), 1e-12);
  EXPECT_LT(support::distance(pipeline.evaluate(x), expected), 1e-12);
  EXPECT_EQ(pipeline.timeline().micro_batches, 3);
}

TEST(SplitSize, ScheduleAndPredictionNeedBatch) {
  nn::Layers net = support::chain(3);
  Pipeline pipeline(net,
                    {.devices = virtual_devices(2), .balance = {3, 2}, .plan = {.split_size = 3}});
  EXPECT_THAT(message_of<UsageError>([&] { (void)pipeline.schedule(); }),
              HasSubstr("split_size = 3 does not determine the number of micro-batches"));
  EXPECT_EQ(pipeline.schedule(2).micro_batches, 2);
  const auto costs = pipeline.profile({support::input(8)}, support::target(8), nn::cross_entropy());
  EXPECT_EQ(pipeline.schedule().micro_batches, 3);
  EXPECT_EQ(pipeline.predict(costs).micro_batches, 3);
}

TEST(SplitSize, SuggestsFitInSizes) {
  nn::Layers net = support::chain(5, 64);
  Pipeline pipeline(net, {.devices = virtual_devices(2, 1 << 20),
                          .balance = {5, 4},
                          .recompute = Recompute::Always,
                          .plan = {.split_size = 1500}});
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({3000, 64}, at::kDouble);
  pipeline.profile({x}, torch::randint(64, {3000}), nn::cross_entropy());
  EXPECT_THAT(pipeline.suggest_fit(), ::testing::AnyOf(HasSubstr("split_size = "),
                                                       HasSubstr("Neither more micro-batches")));
  EXPECT_THAT(pipeline.suggest_fit(), ::testing::Not(HasSubstr("micro_batches = ")));
}

TEST(SplitSize, RefusesMicroBatchesBesideSplitSize) {
  const auto construct = [](int micro_batches, int split_size) {
    return message_of<UsageError>([=] {
      Pipeline(support::chain(3), {.devices = virtual_devices(2),
                                   .balance = {3, 2},
                                   .micro_batches = micro_batches,
                                   .plan = {.split_size = split_size}});
    });
  };
  EXPECT_THAT(construct(4, 20),
              AllOf(HasSubstr("micro_batches = 4 and split_size = 20 are both given")));
  EXPECT_THAT(construct(1, -2), HasSubstr("split_size = -2 is negative"));
  EXPECT_EQ(construct(1, 20), "nothing was thrown");
}

}  // namespace
}  // namespace trestle
