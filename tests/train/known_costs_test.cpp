#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

#include "benchmarks/sleeping_net.h"
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

}  // namespace
}  // namespace trestle::train
