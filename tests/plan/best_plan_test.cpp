// The one plan that a run takes.
#include "trestle/plan/search/best_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "tests/plan/vtrain.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/plan/gpt/planned_gpt.h"

namespace trestle::plan {
namespace {

using testing::AllOf;
using testing::HasSubstr;

const GptModel small = {
    .layers = 8, .hidden = 512, .heads = 8, .sequence = 256, .vocabulary = 8192};
const GptModel billions_1 = {
    .layers = 24, .hidden = 2048, .heads = 16, .sequence = 1024, .vocabulary = 51200};

// Each usual way is searched again without bounds: none beats the plan, whatever the goal.
TEST(BestPlan, IsNeverWorseThanAPreset) {
  const Machine machine = vtrain::machine();
  for (const GptModel& gpt : {small, billions_1}) {
    const PlannedGpt model(gpt, machine);
    for (const int devices : {1, 4, 6})
      for (const Goal goal : {Goal::Time, Goal::Memory})
        for (const double memory : {0.0, 12e9}) {
          const PlanRequest request{
              .devices = devices, .batch = 24, .goal = goal, .memory = memory};
          BestPlan best;
          try {
            best = find_best_plan(model, machine, request, DeviceUse::Any);
          } catch (const UsageError&) {
            continue;  // nothing fits
          }
          int compared = 0;
          for (const UsualWay& way : usual_ways(devices)) {
            PlanRequest own = request;
            own.devices = way.devices;
            own.kept = way.kept;
            own.simulate_all = true;
            if (!has_legal_strategy(model, own)) continue;
            for (const Plan& other : find_plans(model, machine, own).best) {
              ++compared;
              if (goal == Goal::Time)
                EXPECT_LE(best.plan.step.seconds, other.step.seconds)
                    << devices << " " << way.name << " " << to_string(other.strategy);
              else
                EXPECT_LE(best.plan.worst.total(), other.worst.total())
                    << devices << " " << way.name << " " << to_string(other.strategy);
            }
          }
          EXPECT_GT(compared, 0);
        }
  }
}

TEST(BestPlan, ComparesWithEveryUsualWay) {
  const Machine machine = vtrain::machine();
  const PlannedGpt model(small, machine);
  const auto names = [&](const PlanRequest& request, DeviceUse use) {
    std::vector<std::string> found;
    for (const Preset& preset : find_best_plan(model, machine, request, use).presets)
      found.push_back(preset.name);
    return found;
  };
  EXPECT_THAT(names({.devices = 4, .batch = 16}, DeviceUse::Any),
              testing::ElementsAre("one device", "DDP", "ZeRO-1", "ZeRO-2", "ZeRO-3", "HSDP",
                                   "GPipe", "1F1B", "tensor"));
  // The launcher has started four ranks; and what is kept leaves some ways out.
  EXPECT_EQ(names({.devices = 4, .batch = 16}, DeviceUse::All).front(), "DDP");
  EXPECT_THAT(names({.devices = 4, .batch = 16, .kept = {.data = 4, .level = 2}}, DeviceUse::Any),
              testing::ElementsAre("ZeRO-2"));
}

// A step of one example has nothing to share.
TEST(BestPlan, LeavesDevicesIdleOnlyWhereItMay) {
  Machine machine = vtrain::machine();
  machine.inside.latency.value = 1;  // second
  machine.all_reduce.clear();
  const PlannedGpt model(small, machine);
  const PlanRequest request{.devices = 4, .batch = 4};
  EXPECT_EQ(find_best_plan(model, machine, request, DeviceUse::Any).plan.strategy.devices(), 1);
  EXPECT_EQ(find_best_plan(model, machine, request, DeviceUse::All).plan.strategy.devices(), 4);
}

TEST(BestPlan, SaysWhyInAFewLinesAndAsJson) {
  const Machine machine = vtrain::machine();
  const PlannedGpt model(billions_1, machine);
  const BestPlan best = find_best_plan(model, machine, {.devices = 4, .batch = 16}, DeviceUse::Any);
  ASSERT_TRUE(best.second);
  EXPECT_LE(best.plan.step.seconds, best.second->step.seconds);
  const std::vector<std::string> lines = reasons_of(best, model, machine);
  ASSERT_EQ(lines.size(), 4u);
  EXPECT_EQ(lines[0], to_string(best.plan.strategy));
  EXPECT_THAT(lines[1], AllOf(HasSubstr(" per step by simulation ("), HasSubstr("peak ")));
  EXPECT_THAT(lines[2], AllOf(HasSubstr("second: tensor "), HasSubstr("it takes ")));
  EXPECT_THAT(lines[3], AllOf(HasSubstr("presets: one device "), HasSubstr(" · DDP "),
                              HasSubstr(" · 1F1B ")));
  const auto json = nlohmann::json::parse(best_plan_json(best, model, machine));
  EXPECT_EQ(json["chosen"], lines[0]);
  EXPECT_EQ(json["predicted_step_seconds"].get<double>(), best.plan.step.seconds);
  EXPECT_EQ(json["presets"].size(), best.presets.size());
  EXPECT_EQ(json["second"], to_string(best.second->strategy));
}

TEST(BestPlan, NothingFitsIsAnErrorWithTheReasons) {
  const Machine machine = vtrain::machine();
  const PlannedGpt model(billions_1, machine);
  try {
    find_best_plan(model, machine, {.devices = 2, .batch = 16, .memory = 1e9}, DeviceUse::Any);
    FAIL() << "no error";
  } catch (const UsageError& error) {
    EXPECT_THAT(std::string(error.what()), AllOf(HasSubstr("None of "), HasSubstr("least memory: "),
                                                 HasSubstr("least devices: ")));
  }
}

// The plans of fewer devices are found once, and the request is that of the plan's devices.
TEST(BestPlan, ByMoneyCountsEachPlanOnce) {
  Machine machine = vtrain::machine();
  machine.price_per_hour = Figure{2, Origin::Assumed, "a guess"};
  const PlannedGpt model(small, machine);
  PlanRequest request{.devices = 4, .batch = 16, .goal = Goal::Money};
  const BestPlan any = find_best_plan(model, machine, request, DeviceUse::Any);
  EXPECT_LT(any.plan.strategy.devices(), 4);
  EXPECT_EQ(any.request.devices, any.plan.strategy.devices());
  EXPECT_EQ(find_best_plan(model, machine, request, DeviceUse::All).plan.strategy.devices(), 4);
  std::int64_t fitting = 0;
  for (request.devices = 4; request.devices >= 1; request.devices /= 2) {
    PlanRequest by_time = request;
    by_time.goal = Goal::Time;
    fitting += find_plans(model, machine, by_time).fitting;
  }
  EXPECT_EQ(any.fitting, fitting);
}

TEST(BestPlan, RefusesNumbersThatAreNone) {
  const Machine machine = vtrain::machine();
  const PlannedGpt model(small, machine);
  const auto find = [&](const PlanRequest& request) {
    find_best_plan(model, machine, request, DeviceUse::Any);
  };
  EXPECT_THROW(find({.devices = 0, .batch = 16}), UsageError);
  EXPECT_THROW(find({.devices = 4, .batch = 0}), UsageError);
  EXPECT_THROW(find({.devices = 4, .batch = 16, .top = 0}), UsageError);
  EXPECT_THROW(find({.devices = 4, .batch = 16, .memory = -1}), UsageError);
  EXPECT_THROW(find({.devices = 4, .batch = 16, .kept = {.tensor = 0}}), UsageError);
}

}  // namespace
}  // namespace trestle::plan
