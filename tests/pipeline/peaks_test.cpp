// A predicted peak is an upper bound: no step may measure more.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <iostream>

#include "tests/pipeline/conv_net.h"
#include "tests/pipeline/excess.h"
#include "tests/pipeline/small_gpt2.h"
#include "trestle/base/text.h"
#include "trestle/models/unet3d.h"
#include "trestle/nn/token_loss.h"
#include "trestle/schedule/csv.h"

namespace trestle {
namespace {

using namespace support;

struct PeakCase {
  std::string name;
  std::function<nn::Layers()> net;
  std::vector<std::vector<int>> balances;
  at::Tensor input;
  at::Tensor target;
  nn::Loss loss;
  int micro_batches = 4;
  CoreOptions cores = {};
};

// Boundary values are a large share of what a stage keeps.
nn::Layers wide_net() {
  torch::manual_seed(0);
  nn::Layers net;
  net.add("up", torch::nn::Linear(64, 256));
  net.add("relu", [](at::Tensor x) { return x.relu(); });
  net.add("across", torch::nn::Linear(256, 256));
  net.add("down", torch::nn::Linear(256, 64));
  return net;
}

// Skips over stages and to two consumers, views of larger memory as outputs and (after cat()) as
// gradients, buffers, dropout, an in-place layer.
nn::Layers skip_net_with_views() {
  torch::manual_seed(0);
  nn::Layers net;
  net.add("first", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 8, 3).padding(1)))
      .keep_output("a");
  net.add("norm", torch::nn::BatchNorm2d(8));
  net.add("half", [](at::Tensor x) { return x.narrow(1, 0, 4); }).keep_output("b");
  net.add("relu", torch::nn::ReLU());
  net.add("second", torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 8, 3).padding(1)));
  net.add("drop", torch::nn::Dropout(torch::nn::DropoutOptions(0.5).inplace(true)));
  net.add("join", [](at::Tensor x, at::Tensor b) { return torch::cat({x, b}, 1); }).take("b");
  net.add("third", torch::nn::Conv2d(torch::nn::Conv2dOptions(12, 8, 3).padding(1)));
  net.add("again",
          [](at::Tensor x, at::Tensor a, at::Tensor b) {
            return torch::cat({x, a, b}, 1);
          })
      .take("a")
      .take("b");
  net.add("mean", [](at::Tensor x) { return x.mean({2, 3}); });
  net.add("out", torch::nn::Linear(20, conv_classes));
  return net;
}

nn::Loss whole_batch_loss() {
  return nn::whole_batch("centred", [](at::Tensor output, at::Tensor target) {
    return (output - output.mean(0)).pow(2).mean() + (output - target).pow(2).mean();
  });
}

enum class Gradients { New, KeptFromBefore };

void compare(const PeakCase& test, const std::vector<int>& balance, const std::string& schedule,
             Recompute recompute, Gradients gradients, Excess* excess) {
  const auto devices = virtual_devices(static_cast<int>(balance.size()));
  Pipeline pipeline(test.net(), {.devices = devices,
                                 .balance = balance,
                                 .micro_batches = test.micro_batches,
                                 .schedule = schedule,
                                 .recompute = recompute,
                                 .cores = test.cores});
  const auto step = [&] {
    if (gradients == Gradients::New) pipeline.zero_grad();
    pipeline.step(test.input, test.target, test.loss);
  };
  step();
  if (gradients == Gradients::New) pipeline.zero_grad();
  const auto predicted =
      pipeline.predict(pipeline.profile({test.input}, test.target, test.loss)).device_peak_bytes;
  for (const auto& device : devices) reset_peak_memory(device.torch);
  constexpr int steps = 3;  // message waits differ from step to step
  for (int i = 0; i < steps; ++i) step();
  for (std::size_t i = 0; i < devices.size(); ++i) {
    const Bytes measured = memory_usage(devices[i].torch).peak;
    EXPECT_LE(measured, predicted[i])
        << text(test.name, ", ", schedule, ", balance ", join(balance, ","), ", recompute ",
                schedule::to_string(recompute),
                gradients == Gradients::New ? "" : ", gradients kept", ", device ", i);
    excess->add(predicted[i], measured);
  }
}

void expect_bound(const PeakCase& test, double most_on_average) {
  Excess excess;
  for (const auto& balance : test.balances) {
    for (const std::string schedule : {"gpipe", "1f1b"}) {
      if (schedule != "gpipe" && test.loss.kind == nn::Loss::Kind::WholeBatch) continue;
      for (const Recompute recompute : all_modes) {
        compare(test, balance, schedule, recompute, Gradients::New, &excess);
        if (schedule == "1f1b" || test.loss.kind == nn::Loss::Kind::WholeBatch)
          compare(test, balance, schedule, recompute, Gradients::KeptFromBefore, &excess);
      }
    }
  }
  excess.expect_tight(test.name, most_on_average);
}

at::Tensor peak_rows(std::uint64_t seed) {
  torch::manual_seed(seed);
  return torch::randn({1024, 64});
}

TEST(Peaks, BoundStepsWithWideBoundaries) {
  expect_bound(
      {"wide", wide_net, {{3, 1}, {1, 2, 1}}, peak_rows(1), peak_rows(2), nn::mean_squared_error()},
      1.2);
}

TEST(Peaks, BoundStepsWithWholeBatchLoss) {
  expect_bound(
      {"whole batch", wide_net, {{1, 3}, {3, 1}}, peak_rows(1), peak_rows(2), whole_batch_loss()},
      1.25);
}

// W has a peak of its own: it needs neither what I frees nor what I computes with.
TEST(Peaks, BoundStepsWithSplitBackwards) {
  const auto expect_split_bound = [](const PeakCase& test, const std::string& schedule,
                                     double most_on_average) {
    Excess excess;
    for (const auto& balance : test.balances)
      for (const Recompute recompute : all_modes)
        for (const Gradients gradients : {Gradients::New, Gradients::KeptFromBefore})
          compare(test, balance, schedule, recompute, gradients, &excess);
    excess.expect_tight(test.name, most_on_average);
  };
  expect_split_bound(
      {"wide", wide_net, {{3, 1}, {1, 2, 1}}, peak_rows(1), peak_rows(2), nn::mean_squared_error()},
      "zb_h2", 1.25);
  expect_split_bound({"skips",
                      skip_net_with_views,
                      {{6, 5}, {3, 2, 2, 2, 2}},
                      images(16),
                      labels(16),
                      nn::cross_entropy()},
                     "zb_h1", 1.4);
}

// A skip is counted until a slow neighbour would take it; here no neighbour is slow.
TEST(Peaks, BoundStepsWithSkipsAndViews) {
  expect_bound({"skips",
                skip_net_with_views,
                {{6, 5}, {1, 2, 4, 2, 2}},
                images(16),
                labels(16),
                nn::cross_entropy()},
               1.5);
}

TEST(Peaks, BoundStepsOfUNetOfVolumes) {
  const auto net = [] {
    return models::unet3d({.width = 4, .depth = 2, .pooling = {{1, 2, 2}, {2, 2, 2}}});
  };
  torch::manual_seed(3);
  expect_bound({"volumes",
                net,
                {{3, 9}},
                torch::randn({8, 1, 4, 8, 8}),
                torch::randint(0, 2, {8, 4, 8, 8}),
                nn::cross_entropy()},
               1.5);
}

// The backward of the last layer needs the most, while the step keeps that layer's output.
TEST(Peaks, BoundStepsOfOneMicroBatch) {
  const auto net = [] { return models::unet3d({.width = 4, .depth = 1}); };
  torch::manual_seed(3);
  const int layers = static_cast<int>(net().size());
  expect_bound({"one micro-batch",
                net,
                {{layers}},
                torch::randn({2, 1, 8, 8, 8}),
                torch::randint(0, 2, {2, 8, 8, 8}),
                nn::cross_entropy_and_dice(),
                1},
               1.25);
}

// The gradient's memory order differs from the output's, so a backward copies it.
TEST(Peaks, BoundStepsWithTransposingConsumer) {
  const auto net = [] {
    torch::manual_seed(0);
    nn::Layers made;
    made.add("head", torch::nn::Linear(8, 128));
    made.add("transpose", [](at::Tensor x) { return x.transpose(1, 2); });
    made.add("convolve", torch::nn::Conv1d(128, 4, 3));
    return made;
  };
  torch::manual_seed(1);
  expect_bound({"transposed",
                net,
                {{1, 2}, {2, 1}},
                torch::randn({8, 40, 8}),
                torch::randn({8, 4, 38}),
                nn::mean_squared_error()},
               1.3);
}

// The output is a slice of a larger tensor. A training step ignores the model's other outputs.
TEST(Peaks, BoundStepsWithViewsAsOutputsOfWholeBatchLoss) {
  const auto net = [] {
    nn::Layers made = wide_net();
    made.add("fork", [](at::Tensor x) { return std::tuple(x, x * 2); }).keep_output("more", 1);
    made.add("last", [](at::Tensor x) { return x.reshape({-1, 4, 16}).select(1, -1); });
    made.also_return("more");
    return made;
  };
  expect_bound(
      {"parts", net, {{3, 3}}, peak_rows(1), peak_rows(2).narrow(1, 0, 16), whole_batch_loss(), 8},
      1.5);
}

// The table is most of the weights. The last stage has a copy of it, with a gradient.
void expect_bound_of_gpt2(std::int64_t vocabulary, std::int64_t batch, int micro_batches,
                          double most_on_average) {
  torch::manual_seed(1);
  expect_bound({text("gpt2 with ", vocabulary, " words"),
                [vocabulary] { return small_gpt2(vocabulary); },
                {{2, 3}, {1, 2, 2}},
                torch::randint(vocabulary, {batch, 16}),
                torch::randint(vocabulary, {batch, 16}),
                nn::token_cross_entropy(),
                micro_batches},
               most_on_average);
}

TEST(Peaks, BoundStepsWithTiedWeights) {
  expect_bound_of_gpt2(2048, 4, 4, 1.25);
  expect_bound_of_gpt2(2048, 2, 1, 1.25);
}

// A convolution of a single image uses another kernel, which needs more memory.
TEST(Peaks, BoundStepsWithSmallerLastMicroBatch) {
  const auto net = [] {
    torch::manual_seed(0);
    nn::Layers made;
    for (const char* name : {"a", "b"})
      made.add(name, torch::nn::Conv2d(torch::nn::Conv2dOptions(8, 8, 3).padding(1)));
    return made;
  };
  torch::manual_seed(1);
  const at::Tensor x = torch::randn({7, 8, 16, 16});
  expect_bound({"7 in 4 pieces", net, {{1, 1}}, x, x * 2, nn::mean_squared_error()}, 1.6);
}

// Each thread of a convolution has its own scratch memory, and a stage may use a neighbour's core.
TEST(Peaks, BoundStepsWithLentCores) {
  expect_bound({"lent cores",
                [] { return conv_net(); },
                {{3, 9}},
                images(16),
                labels(16),
                nn::cross_entropy(),
                4,
                {.threads = 1, .lending = CoreLending::On}},
               1.3);
}

TEST(Peaks, BoundStepsWithConvolutions) {
  expect_bound({"convolutions",
                [] { return conv_net(); },
                {{3, 9}},
                images(16),
                labels(16),
                nn::cross_entropy()},
               1.2);
}

// A stage gives the next one of its rank a view, which keeps all of its memory.
TEST(Peaks, BoundStepsWithViewsWithinARank) {
  nn::Layers net(nn::Seed{1});
  net.add("half", [] { return torch::nn::Linear(64, 512); });
  net.add("view", [](at::Tensor x) { return x.narrow(-1, 0, 64); });
  net.add("linear", torch::nn::Linear(64, 64));
  for (const char* name : {"a", "b", "c", "d"}) net.add(name, [](at::Tensor x) { return x; });
  const auto devices = virtual_devices(2);
  Pipeline pipeline(
      net,
      {.devices = {devices[0], devices[0], devices[1], devices[0], devices[1], devices[0]},
       .balance = {2, 1, 1, 1, 1, 1},
       .micro_batches = 2,
       .plan = {.table = schedule::read_csv("0F0,1F0,0F1,3F0,5F0,5B0,3B0,1F1,1B0,3F1,0B0,5F1,5B1,"
                                            "3B1,1B1,0B1\n2F0,4F0,4B0,2B0,2F1,4F1,4B1,2B1\n")}});
  const at::Tensor input = peak_rows(1), target = peak_rows(2);
  const auto step = [&] {
    pipeline.zero_grad();
    pipeline.step(input, target, nn::mean_squared_error());
  };
  step();
  pipeline.zero_grad();
  const auto predicted =
      pipeline.predict(pipeline.profile({input}, target, nn::mean_squared_error()))
          .device_peak_bytes;
  for (int i = 0; i < 2; ++i) reset_peak_memory(devices[i].torch);
  step();
  for (int i = 0; i < 2; ++i)
    EXPECT_LE(memory_usage(devices[i].torch).peak, predicted[i]) << "device " << i;
}

}  // namespace
}  // namespace trestle
