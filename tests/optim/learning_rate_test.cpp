#include "trestle/optim/learning_rate.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/optim/factory.h"
#include "trestle/optim/reduce_on_plateau.h"

namespace trestle::optim {
namespace {

using testing::HasSubstr;

// tools/golden/make_learning_rate_goldens.py
nlohmann::json rate_goldens() {
  return nlohmann::json::parse(
      read_file(std::string(TRESTLE_SOURCE_DIR) + "/tests/golden/optim/learning_rates.json"));
}

LearningRateOptions rate_options(const nlohmann::json& o) {
  LearningRateOptions options;
  options.schedule = o["schedule"];
  options.factor = o.value("factor", options.factor);
  options.every = o.value("every", options.every);
  options.milestones = o.value("milestones", options.milestones);
  options.length = o.value("length", options.length);
  options.lowest = o.value("lowest", options.lowest);
  options.rise = o.value("rise", options.rise);
  options.first_divisor = o.value("first_divisor", options.first_divisor);
  options.last_divisor = o.value("last_divisor", options.last_divisor);
  options.lowest_momentum = o.value("lowest_momentum", options.lowest_momentum);
  options.highest_momentum = o.value("highest_momentum", options.highest_momentum);
  options.warm_up = o.value("warm_up", options.warm_up);
  options.warm_up_from = o.value("warm_up_from", options.warm_up_from);
  return options;
}

// To the last digit that both libraries' cosines have in common.
TEST(LearningRate, EqualsPythonInEveryStep) {
  for (const auto& golden : rate_goldens()["schedules"]) {
    LearningRate rate(golden["base"], rate_options(golden["options"]));
    for (std::size_t step = 0; step < golden["rates"].size(); ++step)
      EXPECT_DOUBLE_EQ(rate.at(static_cast<std::int64_t>(step)),
                       golden["rates"][step].get<double>())
          << golden["options"] << " step " << step;
  }
}

TEST(LearningRate, DependsOnTheStepOnly) {
  for (const auto& golden : rate_goldens()["schedules"]) {
    LearningRate steady(golden["base"], rate_options(golden["options"]));
    for (const std::int64_t step : {59, 3, 0, 31, 30}) {
      LearningRate fresh(golden["base"], rate_options(golden["options"]));
      EXPECT_EQ(steady.at(step), fresh.at(step)) << golden["options"] << " step " << step;
    }
  }
}

TEST(LearningRate, ScalesWithTheBase) {
  for (const auto& golden : rate_goldens()["schedules"]) {
    if (golden["options"].contains("lowest")) continue;
    LearningRate rate(golden["base"], rate_options(golden["options"]));
    const double before = rate.at(20);
    rate.set_base(rate.base() * 2);
    EXPECT_DOUBLE_EQ(rate.at(20), 2 * before);
  }
}

// OneCycleLR's cycle_momentum, which is on by default.
TEST(LearningRate, MomentumEqualsPython) {
  for (const auto& golden : rate_goldens()["momenta"]) {
    LearningRate rate(golden["base"], rate_options(golden["options"]));
    for (std::size_t step = 0; step < golden["momenta"].size(); ++step) {
      const auto at = static_cast<std::int64_t>(step);
      const std::optional<double> momentum = rate.momentum_at(at);
      ASSERT_TRUE(momentum.has_value());
      EXPECT_DOUBLE_EQ(*momentum, golden["momenta"][step].get<double>())
          << golden["options"] << " step " << step;
      // Python's LinearLR before OneCycleLR rises to the cycle's first rate, ours to its highest.
      if (golden["options"].contains("warm_up")) continue;
      EXPECT_DOUBLE_EQ(rate.at(at), golden["rates"][step].get<double>()) << step;
    }
  }
  EXPECT_FALSE(LearningRate(0.1, {.schedule = "cosine", .length = 9}).momentum_at(3));
  EXPECT_FALSE(LearningRate(0.1, {.schedule = "one_cycle", .length = 9, .cycle_momentum = false})
                   .momentum_at(3));
  LearningRate rate(0.1, {.schedule = "one_cycle", .length = 10});
  EXPECT_DOUBLE_EQ(*rate.momentum_at(9), 0.95);
  EXPECT_EQ(rate.momentum_at(9), rate.momentum_at(100));
}

TEST(LearningRate, StaysAtLowestRateAfterDecay) {
  for (const char* schedule : {"cosine_decay", "linear_decay"}) {
    LearningRate rate(0.1, {.schedule = schedule, .length = 10, .lowest = 0.01, .warm_up = 5});
    EXPECT_EQ(rate.at(5), 0.1) << schedule;
    EXPECT_GT(rate.at(14), 0.01) << schedule;
    for (const std::int64_t step : {15, 16, 1000}) EXPECT_EQ(rate.at(step), 0.01) << schedule;
  }
}

OptimizerOptions optimizer_of(const nlohmann::json& o, double rate) {
  OptimizerOptions options;
  options.name = o["name"];
  options.learning_rate = rate;
  options.momentum = o.value("momentum", 0.0);
  options.nesterov = o.value("nesterov", false);
  options.weight_decay = o.value("weight_decay", 0.0);
  return options;
}

// Compares the weights step by step: in double with torch's own steps, in float with the fused
// ones.
TEST(SetMomentum, WeightsEqualPython) {
  const nlohmann::json all = rate_goldens();
  for (const auto& golden : all["momenta"]) {
    for (const at::ScalarType type : {at::kDouble, at::kFloat}) {
      const at::Tensor weight = torch::tensor({1.0, -2.0, 0.5}, type).requires_grad_();
      const at::Tensor aim = torch::tensor({0.3f, 0.2f, -0.1f}).to(type);
      const auto optimizer = make_optimizer({weight}, optimizer_of(golden["optimizer"], 1));
      for (std::size_t step = 0; step < golden["weights"].size(); ++step) {
        set_learning_rate(*optimizer, golden["rates"][step]);
        set_momentum(*optimizer, golden["momenta"][step]);
        optimizer->zero_grad();
        ((weight - aim).square() * (1 + static_cast<double>(step % 3))).sum().backward();
        optimizer->step();
        for (int i = 0; i < 3; ++i)
          EXPECT_NEAR(weight[i].item<double>(), golden["weights"][step][i].get<double>(),
                      type == at::kDouble ? 1e-12 : 2e-5)
              << golden["optimizer"] << " step " << step;
      }
    }
  }
}

TEST(LearningRate, OneCycleStaysAtItsLastRate) {
  LearningRate rate(0.1, {.schedule = "one_cycle", .length = 10});
  EXPECT_DOUBLE_EQ(rate.at(9), 0.1 / 25 / 1e4);
  EXPECT_EQ(rate.at(9), rate.at(100));
  EXPECT_EQ(LearningRate(0.1, {.schedule = "one_cycle", .length = 1}).at(0), 0.1 / 25 / 1e4);
}

std::string refusal(const LearningRateOptions& options) {
  try {
    const LearningRate rate(0.1, options);
  } catch (const UsageError& error) {
    return error.what();
  }
  return "taken";
}

TEST(LearningRate, RejectsInvalidOptions) {
  EXPECT_THAT(refusal({.schedule = "cosin"}), HasSubstr("did you mean 'cosine'?"));
  EXPECT_THAT(refusal({.schedule = "cosine"}), HasSubstr("length = 0 is not at least 1"));
  EXPECT_THAT(refusal({.schedule = "one_cycle", .length = 5, .rise = 2}), HasSubstr("rise = 2"));
  EXPECT_THAT(refusal({.schedule = "one_cycle", .length = 5, .highest_momentum = 1}),
              HasSubstr("highest_momentum = 1 is not below 1"));
  EXPECT_THAT(refusal({.schedule = "one_cycle", .length = 5, .lowest_momentum = 0.96}),
              HasSubstr("lowest_momentum = 0.96"));
  EXPECT_THAT(refusal({.schedule = "step", .every = 0}), HasSubstr("every = 0"));
  EXPECT_THAT(refusal({.schedule = "multi_step", .milestones = {3, 2}}), HasSubstr("[3, 2]"));
  EXPECT_THAT(refusal({.warm_up = -1}), HasSubstr("warm_up = -1"));
  EXPECT_THAT(refusal({.warm_up = 3, .warm_up_from = 0}), HasSubstr("warm_up_from = 0"));
  LearningRate rate(0.1);
  EXPECT_THROW(rate.at(-1), UsageError);
}

PlateauOptions plateau_options_of(const nlohmann::json& o) {
  PlateauOptions options;
  options.mode = o["mode"] == "max" ? PlateauOptions::Mode::Max : PlateauOptions::Mode::Min;
  options.factor = o.value("factor", 0.1);
  options.patience = o["patience"];
  options.threshold = o.value("threshold", 1e-4);
  if (o.value("threshold_mode", "rel") == "abs")
    options.threshold_mode = PlateauOptions::Threshold::Absolute;
  options.cooldown = o.value("cooldown", 0);
  options.lowest = o.value("min_lr", 0.0);
  options.smallest_change = o.value("eps", 1e-8);
  return options;
}

TEST(ReduceOnPlateau, EqualsPython) {
  const nlohmann::json golden = rate_goldens();
  for (const auto& plateau : golden["plateaus"]) {
    const PlateauOptions options = plateau_options_of(plateau["options"]);
    ReduceOnPlateau reduce(options);
    double rate = 1;
    for (std::size_t i = 0; i < golden["metrics"].size(); ++i) {
      ReduceOnPlateau resumed(options);  // resumed from plain numbers after every step
      resumed.load(reduce.state());
      reduce = resumed;
      if (reduce.step(golden["metrics"][i])) rate = reduce.reduced(rate);
      EXPECT_EQ(rate, plateau["rates"][i].get<double>()) << plateau["options"] << " " << i;
    }
  }
}

// Python's begins with the worst possible value, so a metric that is no better counts as bad.
TEST(ReduceOnPlateau, CountsAnInfiniteLossAsNoImprovement) {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const auto mode : {PlateauOptions::Mode::Min, PlateauOptions::Mode::Max}) {
    const double worst = mode == PlateauOptions::Mode::Min ? infinity : -infinity;
    ReduceOnPlateau reduce({.mode = mode, .patience = 1});
    EXPECT_FALSE(reduce.step(worst));
    EXPECT_FALSE(reduce.state().has_best);
    EXPECT_TRUE(reduce.step(std::nan("")));
    EXPECT_FALSE(reduce.step(0.5));
    EXPECT_EQ(reduce.state().best, 0.5);
  }
}

TEST(ReduceOnPlateau, RejectsInvalidOptions) {
  EXPECT_THROW(ReduceOnPlateau({.factor = 1}), UsageError);
  EXPECT_THROW(ReduceOnPlateau({.patience = -1}), UsageError);
  EXPECT_THROW(ReduceOnPlateau({.threshold = -1}), UsageError);
  EXPECT_THROW(ReduceOnPlateau({.lowest = -1}), UsageError);
}

}  // namespace
}  // namespace trestle::optim
