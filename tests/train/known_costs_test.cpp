#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <utility>

#include "benchmarks/sleeping_net.h"
#include "trestle/base/error.h"
#include "trestle/train/layer_costs.h"
#include "trestle/train/measure.h"

namespace trestle::train {
namespace {

constexpr benchmarks::SleepingCosts costs{.call = 0.002, .sample = 0.002};
constexpr int batch = 24;

StepTimes measured_with(int split_size) {
  recipe::Recipe recipe;
  recipe.name = "sleeping";
  recipe.model.name = "sleeping";
  recipe.model.classes = 4;
  recipe.data.name = "random";
  recipe.data.shape = {4};
  recipe.data.count = batch;
  recipe.devices.use = "virtual:2";
  recipe.pipeline.balance = {1, 1};
  recipe.pipeline.split_size = split_size;
  recipe.optimizer.name = "sgd";
  recipe.train.batch = batch;
  recipe.train.loss = "mean_squared_error";
  const auto make = [](const models::ModelOptions& options) {
    return benchmarks::sleeping_net(2, options.classes, costs);
  };
  return measure_steps(recipe, {.warm_up = 1, .steps = 2, .models = {{"sleeping", make}}});
}

double on_paper(int split_size) {
  const double pieces = static_cast<double>(batch) / split_size;
  return 3 * (pieces + 1) * (costs.call + costs.sample * split_size);
}

// PyTorch's tutorial looks for the best split size. Small micro-batches pay for each call, one
// large one leaves a stage idle. With known costs the best size is in between, at a known place.
TEST(KnownCosts, BestSplitSizeIsInsideRange) {
  const StepTimes small = measured_with(1), middle = measured_with(6), large = measured_with(batch);
  const auto seconds = [](const StepTimes& times) {
    return *std::min_element(times.seconds.begin(), times.seconds.end());
  };
  EXPECT_LT(seconds(middle), seconds(small));
  EXPECT_LT(seconds(middle), seconds(large));
  EXPECT_LT(middle.predicted_seconds, small.predicted_seconds);
  EXPECT_LT(middle.predicted_seconds, large.predicted_seconds);
  for (const auto& [times, split_size] : {std::pair(middle, 6), std::pair(large, batch)})
    // on a busy machine a sleep takes longer
    EXPECT_GT(seconds(times), 0.99 * on_paper(split_size));
}

// Two wide layers and small activations: the optimizer's temporary tensors make the peak. The fused
// kernels have none; RMSprop with a centred square is torch's own.
TEST(LayerCosts, PredictedPeakIncludesOptimizersStep) {
  constexpr std::int64_t wide = 128;
  constexpr Bytes weight = wide * wide * 4;
  recipe::Recipe recipe;
  recipe.name = recipe.model.name = "wide";
  recipe.data.name = "random";
  recipe.data.shape = {wide};
  recipe.data.count = 4;
  recipe.devices.use = "virtual:2";
  recipe.optimizer.name = "rmsprop";
  recipe.optimizer.centered = true;
  recipe.train.batch = 4;
  recipe.train.loss = "mean_squared_error";
  const auto make = [](const models::ModelOptions&) {
    nn::Layers net(nn::Seed{1});
    for (const char* name : {"a", "b"})
      net.add(name,
              [] { return torch::nn::Linear(torch::nn::LinearOptions(wide, wide).bias(false)); });
    return net;
  };
  plan::LayerProfile profile;
  for (const char* name : {"a", "b"})
    profile.layers.push_back({.name = name, .forward = 1, .backward = 2, .parameters = weight});
  for (int from = -1; from < 2; ++from)
    profile.values.push_back({.from = from, .to = {from + 1}, .saved_by = {}, .bytes = 16});
  const LayerCosts costs = costs_of_profile(recipe, profile, {{"wide", make}});
  const schedule::Timeline step = predict_cut(recipe, costs, {1, 1}).timeline;
  // The weight, its gradient, two averages and three temporary tensors.
  for (const Bytes peak : step.device_peak_bytes) EXPECT_EQ(peak, 7 * weight);
  EXPECT_EQ(plan::stage_bytes(costs.profile, 0, 1, costs.sizes), 7 * weight);
  EXPECT_THROW(plan::balance_within(costs.profile, {7 * weight - 1, 0}, costs.sizes), UsageError);
  recipe.optimizer = {};
  recipe.optimizer.name = "adamw";
  const LayerCosts fused = costs_of_profile(recipe, profile, {{"wide", make}});
  EXPECT_EQ(plan::stage_bytes(fused.profile, 0, 1, fused.sizes), 4 * weight);
}

}  // namespace
}  // namespace trestle::train
