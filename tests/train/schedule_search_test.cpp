// The search of a schedule for a recipe counts messages.
#include "trestle/train/schedule_search.h"

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <algorithm>
#include <string>

#include "trestle/schedule/timeline.h"

namespace trestle::train {
namespace {

constexpr int layers = 8, ranks = 4;

plan::ScheduleAnswer answer_with(double seconds_of_message, double seconds_per_byte) {
  recipe::Recipe recipe;
  recipe.name = recipe.model.name = "even";
  recipe.data.name = "random";
  recipe.data.shape = {4};
  recipe.data.count = 8;
  recipe.devices.use = "virtual:4";
  recipe.train.batch = 8;
  recipe.train.loss = "mean_squared_error";
  recipe.pipeline.micro_batches = 8;
  const auto make = [](const models::ModelOptions&) {
    nn::Layers net(nn::Seed{1});
    for (int i = 0; i < layers; ++i)
      net.add("layer" + std::to_string(i), [] { return torch::nn::Linear(4, 4); });
    return net;
  };
  plan::LayerProfile profile;
  for (int i = 0; i < layers; ++i)
    profile.layers.push_back({.name = "layer" + std::to_string(i),
                              .forward = 1,
                              .backward = 2,
                              .parameters = 80,
                              .split = plan::LayerCost::Split{.input_grad = 1, .weight_grad = 1}});
  for (int from = -1; from < layers; ++from)
    profile.values.push_back({.from = from, .to = {from + 1}, .saved_by = {}, .bytes = 16});
  const LayerCosts costs = costs_of_profile(recipe_to_search(recipe), profile, {{"even", make}});
  return find_schedule(
      recipe, costs,
      {.times = {.stages = {.seconds = seconds_of_message, .seconds_per_byte = seconds_per_byte}}});
}

double seconds_of(const plan::ScheduleAnswer& answer, const std::string& name,
                  int stages_per_rank) {
  for (const plan::SimulatedSchedule& one : answer.fixed)
    if (one.name == name && one.stages_per_rank == stages_per_rank) return one.seconds;
  ADD_FAILURE() << "the search has not simulated " << name;
  return 0;
}

// The first micro-batch passes p - 1 borders forwards and p - 1 backwards, and waits for a message
// at each. GPipe's other messages travel while the stages compute.
TEST(ScheduleSearch, CountsTheTimeOfMessages) {
  const double here = seconds_of(answer_with(0, 0), "gpipe", 1);
  EXPECT_DOUBLE_EQ(here, (8 + ranks - 1) * layers / ranks * 3);
  const double apart = seconds_of(answer_with(0.25, 0.25 / 16), "gpipe", 1);
  EXPECT_DOUBLE_EQ(apart, here + 2 * (ranks - 1) * (0.25 + 0.25));
}

// Two stages on each rank halve the bubble, and their messages come twice as often.
TEST(ScheduleSearch, TakesFewerStagesWhereMessagesAreSlow) {
  const auto fast = answer_with(0, 0), slow = answer_with(4, 0);
  EXPECT_LT(seconds_of(fast, "interleaved_1f1b", 2), seconds_of(fast, "1f1b", 1));
  EXPECT_GT(seconds_of(slow, "interleaved_1f1b", 2), seconds_of(slow, "1f1b", 1));
  ASSERT_TRUE(fast.best && slow.best);
  EXPECT_EQ(slow.best->stages_per_rank, 1);
  EXPECT_GT(slow.best->seconds, fast.best->seconds);
}

}  // namespace
}  // namespace trestle::train
