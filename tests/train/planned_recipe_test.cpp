// The planner's view of a recipe, against dry runs of the recipes that it writes.
#include "trestle/train/planner/planned_recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "trestle/base/text.h"
#include "trestle/plan/search/search.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/dry_run.h"
#include "trestle/train/setup.h"

namespace trestle::train {
namespace {

using plan::BlockRecompute;
using plan::Strategy;

recipe::Recipe recipe_of_model(const std::string& model, const std::string& more = "") {
  return recipe::parse_recipe(
      text("[model]\nname = \"", model,
           "\"\nwidth = 16\nclasses = 4\nchannels = 12\n[data]\nname = \"random\"\n",
           "targets = \"normal\"\ncount = 64\nshape = [12]\n[train]\nbatch = 16\nepochs = 1\n",
           "loss = \"mean_squared_error\"\n[devices]\nuse = \"virtual:4x64MiB\"\nthreads = 1\n",
           "[optimizer]\nname = \"adam\"\n", more),
      "planned.toml");
}

PlannedRecipe planned(const recipe::Recipe& recipe, int devices) {
  return PlannedRecipe(recipe, {},
                       {.device = planned_devices("virtual:1x64MiB").at(0), .count = devices});
}

plan::Machine machine_of_test() {
  plan::Machine machine;
  machine.name = "test";
  machine.memory.value = 64 << 20;
  return machine;
}

// There is one model of memory: a strategy's peak is that of a dry run of its recipe.
TEST(PlannedRecipe, PeaksAreThoseOfDryRuns) {
  const PlannedRecipe model = planned(recipe_of_model("mlp"), 4);
  for (Strategy strategy :
       {Strategy{.pipeline = 2, .micro_batch = 4},
        Strategy{.pipeline = 2, .micro_batch = 4, .schedule = "gpipe"},
        Strategy{.pipeline = 2, .micro_batch = 2, .recompute = BlockRecompute::All},
        Strategy{.data = 4, .micro_batch = 2}, Strategy{.data = 2, .level = 1, .micro_batch = 4},
        Strategy{.data = 2, .level = 3, .micro_batch = 4},
        Strategy{.tensor = 2, .pipeline = 2, .micro_batch = 4}}) {
    const auto n = plan::micro_batches_of(strategy, 16);
    recipe::Recipe recipe = model.recipe_of(strategy);
    const auto ledgers = model.ledgers(strategy, n);
    ASSERT_EQ(ledgers.size(), static_cast<std::size_t>(strategy.pipeline)) << to_string(strategy);
    if (strategy.devices() == strategy.pipeline) recipe.devices.use = "virtual:2x64MiB";
    const RunPlan dry = plan_on_paper(recipe);
    ASSERT_EQ(dry.stages.size(), ledgers.size()) << to_string(strategy);
    for (std::size_t stage = 0; stage < ledgers.size(); ++stage)
      EXPECT_EQ(static_cast<Bytes>(ledgers[stage].total()), dry.stages[stage].predicted_peak)
          << to_string(strategy) << ", stage " << stage;
  }
}

TEST(PlannedRecipe, RecipesOfAllLegalStrategiesAreRecipes) {
  const recipe::Recipe given = recipe_of_model("toy", "clip_grad_norm = 1.0\n");
  const PlannedRecipe model = planned(given, 4);
  std::vector<plan::RuleCount> rules;
  const auto all = plan::legal_strategies(model, {.devices = 4, .batch = 16}, &rules);
  EXPECT_GT(all.size(), 50u);
  for (const Strategy& strategy : all) {
    const recipe::Recipe recipe = model.recipe_of(strategy);
    const recipe::Recipe again = recipe::parse_recipe(recipe::to_toml(recipe), "again.toml");
    EXPECT_EQ(recipe::to_toml(again), recipe::to_toml(recipe));
    EXPECT_NO_THROW(check_training(again)) << to_string(strategy);
    EXPECT_EQ(recipe.optimizer.clip_grad_norm, 1.0);
    EXPECT_EQ(recipe.devices.use, "virtual:4x64MiB");
    EXPECT_EQ(recipe.train.batch, 16);
  }
}

// The search leaves out no strategy that would be among the best.
TEST(PlannedRecipe, NoStrategyThatWasNotSimulatedIsBetter) {
  const PlannedRecipe model = planned(recipe_of_model("mlp"), 4);
  const plan::Machine machine = machine_of_test();
  plan::PlanRequest request{.devices = 4, .batch = 16, .top = 3};
  const auto found = plan::find_plans(model, machine, request);
  request.simulate_all = true;
  const auto all = plan::find_plans(model, machine, request);
  ASSERT_EQ(found.best.size(), 3u);
  EXPECT_EQ(all.bounded, 0);
  for (std::size_t i = 0; i < 3; ++i)
    EXPECT_EQ(found.best[i].step.seconds, all.best[i].step.seconds) << i;
}

// Rules with their reasons: a loss over the whole batch has GPipe alone, and the layers of a model
// limit its stages.
TEST(PlannedRecipe, SchedulesAndStagesFollowTheRecipe) {
  const PlannedRecipe model = planned(recipe_of_model("two_linears"), 8);
  std::vector<plan::RuleCount> rules;
  for (const Strategy& strategy :
       plan::legal_strategies(model, {.devices = 8, .batch = 16}, &rules))
    EXPECT_LE(strategy.pipeline, 3);
  EXPECT_FALSE(rules.empty());
  EXPECT_EQ(model.layers(), 3);
  EXPECT_EQ(model.schedules().size(), 2u);
  EXPECT_EQ(model.recomputations().size(), 2u);
}

}  // namespace
}  // namespace trestle::train
