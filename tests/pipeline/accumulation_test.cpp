// Accumulated gradients of several steps equal those of one larger mini-batch.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "tests/pipeline/small_nets.h"
#include "trestle/base/error.h"
#include "trestle/device/virtual_device.h"

namespace trestle {
namespace {

using small::expect_equal;
using small::gradients_of;
using support::chain;
using support::input;
using support::message_of;
using support::target;
using ::testing::HasSubstr;

// Runs mini-batches of `sizes` in turn, each scaled by its share of the total weight.
double accumulate(Pipeline& pipeline, const at::Tensor& x, const at::Tensor& y,
                  const nn::Loss& loss, const std::vector<std::int64_t>& sizes) {
  const auto inputs = x.split_with_sizes(sizes);
  const auto targets = y.split_with_sizes(sizes);
  double all = 0, mean = 0;
  for (const at::Tensor& piece : targets) all += loss.weight(piece);
  std::int64_t first = 0;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const double share = loss.weight(targets[i]) / all;
    const StepResult result = pipeline.step(inputs[i], targets[i], loss,
                                            {.gradient_scale = share, .first_micro_batch = first});
    mean += share * result.loss;
    first += result.micro_batches;
  }
  return mean;
}

TEST(Accumulation, EqualsPlainTorchOnWholeBatch) {
  at::Tensor classes = target(20);
  classes.narrow(0, 3, 4).fill_(-100);  // micro-batches get different weights
  nn::Layers plain = chain(3);
  const at::Tensor loss = torch::nn::functional::cross_entropy(plain.forward(input(20)), classes);
  loss.backward();
  for (const std::string schedule : {"gpipe", "1f1b"}) {
    for (const Recompute recompute : {Recompute::Never, Recompute::ExceptLast}) {
      const nn::Layers net = chain(3);
      Pipeline pipeline(net, {.devices = virtual_devices(2),
                              .balance = {3, 2},
                              .micro_batches = 3,
                              .schedule = schedule,
                              .recompute = recompute});
      const double mean =
          accumulate(pipeline, input(20), classes, nn::cross_entropy(), {8, 8, 4});  // ragged
      EXPECT_NEAR(mean, loss.item<double>(), 1e-12);
      expect_equal(gradients_of(plain), gradients_of(net));
      EXPECT_EQ(pipeline.step_number(), 1);
    }
  }
}

TEST(Accumulation, DrawsRandomNumbersOfLargerMiniBatch) {
  const auto net = [] {
    nn::Layers layers;
    layers.add("first", small::linear(1));
    layers.add("drop", torch::nn::Dropout(0.4));
    layers.add("second", small::linear(2));
    return layers;
  };
  const nn::Layers whole = net(), parts = net();
  const PipelineOptions options = {
      .devices = virtual_devices(2), .balance = {1, 2}, .numerics = {.seed = 9}};
  PipelineOptions six = options, two = options;
  six.micro_batches = 6;
  two.micro_batches = 2;
  Pipeline at_once(whole, six), one_by_one(parts, two);
  for (int step = 0; step < 2; ++step) {
    const double mean = at_once.step(input(24), target(24), nn::cross_entropy()).loss;
    EXPECT_NEAR(accumulate(one_by_one, input(24), target(24), nn::cross_entropy(), {8, 8, 8}), mean,
                1e-12);
    expect_equal(gradients_of(whole), gradients_of(parts));
    EXPECT_EQ(at_once.step_number(), one_by_one.step_number());
  }
}

TEST(Accumulation, ScalesWholeBatchLoss) {
  const auto energy = nn::whole_batch(
      "energy", [](const at::Tensor& y, const at::Tensor&) { return y.square().sum().sqrt(); });
  const auto gradients = [&](double scale) {
    const nn::Layers net = chain(3);
    Pipeline pipeline(net, {.devices = virtual_devices(2), .balance = {3, 2}, .micro_batches = 2});
    EXPECT_NEAR(pipeline.step(input(), target(), energy, {.gradient_scale = scale}).loss,
                chain(3).forward(input()).square().sum().sqrt().item<double>(), 1e-12);
    return gradients_of(net);
  };
  std::vector<at::Tensor> scaled = gradients(1);
  for (at::Tensor& gradient : scaled) gradient.mul_(4);
  expect_equal(scaled, gradients(4), 0);
}

TEST(Accumulation, RefusesInvalidStepOptions) {
  Pipeline pipeline(chain(2), {});
  const auto refusal = [&](const StepOptions& options) {
    return message_of<UsageError>(
        [&] { pipeline.step(input(), target(), nn::cross_entropy(), options); });
  };
  EXPECT_THAT(refusal({.first_micro_batch = 1}), HasSubstr("continues the previous step"));
  EXPECT_THAT(refusal({.first_micro_batch = -1}), HasSubstr("is negative"));
  EXPECT_THAT(refusal({.gradient_scale = std::numeric_limits<double>::infinity()}),
              HasSubstr("cannot be scaled by inf"));
}

}  // namespace
}  // namespace trestle
