// The planner's view of a recipe, against dry runs of the recipes that it writes.
#include "trestle/train/planner/planned_recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

#include "trestle/base/text.h"
#include "trestle/plan/search/search.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/dry_run.h"
#include "trestle/train/recipe_schedule.h"
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
        Strategy{.pipeline = 2, .micro_batch = 4, .schedule = "zb_h1"},
        Strategy{.pipeline = 2, .micro_batch = 4, .schedule = "zbv"},
        Strategy{.pipeline = 2, .data = 2, .micro_batch = 2, .schedule = "interleaved_1f1b"},
        Strategy{.data = 4, .micro_batch = 2}, Strategy{.data = 2, .level = 1, .micro_batch = 4},
        Strategy{.data = 2, .level = 3, .micro_batch = 4},
        Strategy{.tensor = 2, .pipeline = 2, .micro_batch = 4}}) {
    const auto n = plan::micro_batches_of(strategy, 16);
    recipe::Recipe recipe = model.recipe_of(strategy);
    const auto ledgers = model.ledgers(strategy, n);
    ASSERT_EQ(ledgers.size(), static_cast<std::size_t>(strategy.pipeline)) << to_string(strategy);
    if (strategy.devices() == strategy.pipeline) recipe.devices.use = "virtual:2x64MiB";
    const RunPlan dry = plan_on_paper(recipe);
    const std::vector<int> ranks = ranks_of_stages(recipe, dry.stages.size());
    ASSERT_EQ(dry.stages.size() % ledgers.size(), 0u) << to_string(strategy);
    for (std::size_t stage = 0; stage < dry.stages.size(); ++stage)
      EXPECT_EQ(static_cast<Bytes>(ledgers[static_cast<std::size_t>(ranks[stage])].total()),
                dry.stages[stage].predicted_peak)
          << to_string(strategy) << ", stage " << stage;
  }
}

// With a core for each rank. A bound is below the step of every schedule, and split backwards gain
// what they are made for where I and W take half of B each.
TEST(PlannedRecipe, ComparesSchedulesWithSeveralStagesAndSplitBackwards) {
  const PlannedRecipe model = planned(recipe_of_model("mlp"), 2);
  std::map<std::string, double> seconds;
  for (const std::string& schedule : model.schedules()) {
    const Strategy strategy{.pipeline = 2, .micro_batch = 4, .schedule = schedule};
    const auto n = plan::micro_batches_of(strategy, 16);
    ASSERT_TRUE(model.broken_rules(strategy).empty()) << schedule;
    plan::StrategyCosts costs = model.costs(strategy, n);
    for (const simulate::StageCost& stage : costs.costs.stages)
      EXPECT_TRUE(stage.kept_for_weights.has_value()) << schedule;  // I and W are measured
    const double part = 2.0 / static_cast<double>(costs.costs.stages.size());
    for (simulate::StageCost& stage : costs.costs.stages) {
      stage.forward = stage.input_grad = stage.weight_grad = part;
      stage.backward = 2 * part;
    }
    seconds[schedule] = plan::predict_step(*costs.table, 1, costs).seconds;
    EXPECT_LE(plan::least_step_seconds(n, 1, costs), seconds[schedule] * (1 + 1e-9)) << schedule;
  }
  EXPECT_LT(seconds["zb_h1"], seconds["1f1b"]);
  EXPECT_LT(seconds["zbv"], seconds["1f1b"]);
}

// In all stages a transformer recomputes its blocks. The first stages alone are recomputed whole.
TEST(PlannedRecipe, ATransformersFirstStagesAreRecomputedWhole) {
  const PlannedRecipe model = planned(
      recipe::parse_recipe(
          "[model]\nname = \"gpt2\"\nwidth = 16\n[transformer]\nvocabulary = 40\ncontext = 8\n"
          "layers = 4\nheads = 2\n[data]\nname = \"tokens\"\ntokens = \"none\"\nrow_tokens = 8\n"
          "count = 8\norder = \"random\"\n[train]\nbatch = 4\n"
          "[devices]\nuse = \"virtual:2x64MiB\"\nthreads = 1\n",
          "tiny.toml"),
      2);
  const Strategy none{.pipeline = 2, .micro_batch = 1};
  Strategy all = none;
  all.recompute = BlockRecompute::All;
  Strategy first = all;
  first.recompute_stages = 1;
  EXPECT_EQ(model.recompute_stages(all), std::vector<int>{1});
  EXPECT_EQ(model.recipe_of(all).pipeline.checkpoint, std::vector<std::string>{"blocks"});
  const recipe::Recipe recipe = model.recipe_of(first);
  EXPECT_TRUE(recipe.pipeline.checkpoint.empty());
  EXPECT_EQ(recipe.pipeline.recompute, (std::vector<std::string>{"always", "never"}));
  EXPECT_NO_THROW(check_training(recipe));
  const auto peaks = model.ledgers(first, 4);
  const RunPlan dry = plan_on_paper(recipe);
  ASSERT_EQ(peaks.size(), 2u);
  for (std::size_t stage = 0; stage < 2; ++stage)
    EXPECT_EQ(static_cast<Bytes>(peaks[stage].total()), dry.stages.at(stage).predicted_peak);
  EXPECT_LT(peaks[0].total(), model.ledgers(none, 4)[0].total());
  Strategy selective = first;
  selective.recompute = BlockRecompute::Selective;
  EXPECT_TRUE(model.recompute_stages(selective).empty());
  EXPECT_FALSE(model.broken_rules(selective).empty());
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
  EXPECT_EQ(model.recomputations().size(), 2u);
  EXPECT_EQ(model.schedules(),
            (std::vector<std::string>{"1f1b", "gpipe", "zb_h1", "interleaved_1f1b", "zbv"}));
  const auto rule_of = [&](const Strategy& strategy) {
    const auto broken = model.broken_rules(strategy);
    return broken.empty() ? "" : broken.front().why;
  };
  EXPECT_EQ(rule_of({.pipeline = 2, .schedule = "zb_h1"}), "");
  EXPECT_THAT(rule_of({.pipeline = 2, .schedule = "zbv"}), HasSubstr("4 stages are more than 3"));
  EXPECT_THAT(rule_of({.schedule = "zb_h1"}), HasSubstr("needs a pipeline of 2 ranks"));
}

// two_linears has 12 x 16 + 16 and 16 x 4 + 4 parameters of 4 bytes.
constexpr double bytes_of_two_linears = (12 * 16 + 16 + 16 * 4 + 4) * 4;

// On one machine: the bytes that each group's rings and routes send, by hand.
TEST(PlannedRecipe, SentBytesOfEachGroup) {
  const PlannedRecipe model = planned(recipe_of_model("two_linears"), 4);
  const auto sent = [&](const Strategy& strategy) {
    return model.sent(strategy, plan::micro_batches_of(strategy, 16));
  };
  const double all = bytes_of_two_linears;
  EXPECT_DOUBLE_EQ(sent({.data = 4, .micro_batch = 4}).at(0).inside.data, 2 * 3 / 4. * all);
  EXPECT_DOUBLE_EQ(sent({.data = 2, .level = 1, .micro_batch = 4}).at(0).inside.data,
                   2 * 1 / 2. * all);
  // Two micro-batches: a gather for each forward and backward, and the sum at the end.
  EXPECT_DOUBLE_EQ(sent({.data = 2, .level = 3, .micro_batch = 4}).at(0).inside.data,
                   (1 + 2 * 2) * 1 / 2. * all);
  // Rows of two shards, and two replicas of each half.
  EXPECT_DOUBLE_EQ(
      sent({.data = 4, .level = 1, .replicate = 2, .micro_batch = 4}).at(0).inside.data,
      2 * 1 / 2. * all + 2 * 1 / 2. * all / 2);
  // Four micro-batches of 4 examples with 16 numbers, there and back.
  const auto stages = sent({.pipeline = 2, .micro_batch = 4});
  ASSERT_EQ(stages.size(), 2u);
  for (const plan::LinkBytes& stage : stages) {
    EXPECT_DOUBLE_EQ(stage.inside.pipeline, 16 * 16 * 4);
    EXPECT_EQ(stage.total(), stage.inside.pipeline);
  }
  // The second layer's sums in the forward. The gradient of the data is not needed.
  EXPECT_DOUBLE_EQ(sent({.tensor = 2, .micro_batch = 4}).at(0).inside.tensor, 16 * 4 * 4);
}

// Four ranks on two hosts. A rank exchanges as much with each other rank of its group.
TEST(PlannedRecipe, SentBytesBetweenHosts) {
  const PlannedRecipe model = planned(
      recipe_of_model("two_linears", "[mesh]\nlink = \"1Gbit,1s\"\nranks_per_host = 2\n"), 4);
  const auto sent = [&](const Strategy& strategy) {
    return model.sent(strategy, plan::micro_batches_of(strategy, 16)).at(0);
  };
  const double all = bytes_of_two_linears;
  const plan::LinkBytes replicas = sent({.data = 4, .micro_batch = 4});
  EXPECT_DOUBLE_EQ(replicas.inside.data, 2 * 1 / 4. * all);
  EXPECT_DOUBLE_EQ(replicas.between.data, 2 * 2 / 4. * all);
  const plan::LinkBytes rows = sent({.data = 4, .level = 1, .replicate = 2, .micro_batch = 4});
  EXPECT_DOUBLE_EQ(rows.inside.data, 2 * 1 / 2. * all);
  EXPECT_DOUBLE_EQ(rows.between.data, 2 * 1 / 2. * all / 2);
  const plan::LinkBytes stages = sent({.pipeline = 2, .data = 2, .micro_batch = 4});
  EXPECT_DOUBLE_EQ(stages.between.pipeline, 8 * 16 * 4);
  EXPECT_EQ(stages.inside.pipeline, 0);
  EXPECT_EQ(stages.between.data, 0);
  EXPECT_GT(stages.inside.data, 0);
  EXPECT_GT(sent({.tensor = 2, .data = 2, .micro_batch = 4}).inside.tensor, 0);
  EXPECT_EQ(sent({.tensor = 2, .data = 2, .micro_batch = 4}).between.tensor, 0);
}

// A message to the other host takes a second; messages inside a host take none of it.
TEST(PlannedRecipe, OnlyMessagesBetweenHostsTakeTheLinksTime) {
  const auto seconds = [](int ranks_per_host, const Strategy& strategy) {
    const PlannedRecipe model =
        planned(recipe_of_model("two_linears", text("[mesh]\nlink = \"1Gbit,1s\"\n",
                                                    "ranks_per_host = ", ranks_per_host, "\n")),
                4);
    const auto found = plan::find_plans(model, machine_of_test(),
                                        {.devices = 4,
                                         .batch = 16,
                                         .kept = {.tensor = strategy.tensor,
                                                  .pipeline = strategy.pipeline,
                                                  .data = strategy.data,
                                                  .micro_batch = strategy.micro_batch}});
    return found.best.at(0).step.seconds;
  };
  const Strategy stages = {.pipeline = 2, .data = 2, .micro_batch = 8};
  EXPECT_LT(seconds(4, stages), 0.5);
  // One activation and one gradient, each with a request and a message.
  EXPECT_GT(seconds(2, stages), 2);
  EXPECT_LT(seconds(2, stages), 6);
  const Strategy replicas = {.data = 4, .micro_batch = 4};
  EXPECT_LT(seconds(4, replicas), 0.5);
  EXPECT_GT(seconds(2, replicas), 1);
}

TEST(PlannedRecipe, TensorGroupsStayOnOneHost) {
  const PlannedRecipe model = planned(
      recipe_of_model("two_linears", "[mesh]\nlink = \"1Gbit,1s\"\nranks_per_host = 2\n"), 4);
  EXPECT_TRUE(model.broken_rules({.tensor = 2, .data = 2, .micro_batch = 4}).empty());
  const auto rules = model.broken_rules({.tensor = 4, .micro_batch = 4});
  ASSERT_EQ(rules.size(), 1u);
  EXPECT_NE(rules[0].why.find("'tensor' group of 4 on two hosts"), std::string::npos)
      << rules[0].why;
}

}  // namespace
}  // namespace trestle::train
