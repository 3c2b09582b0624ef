// The plan of `auto` in [plan].
#include "trestle/train/planner/choose_plan.h"

#include <gmock/gmock.h>

#include "tests/train/training.h"
#include "trestle/device/virtual_device.h"
#include "trestle/plan/search/best_plan.h"
#include "trestle/train/planner/planned_recipe.h"
#include "trestle/train/planner/recipe_machine.h"
#include "trestle/train/run_folder/environment.h"

namespace trestle::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

recipe::Recipe small(const std::string& model, const std::string& more = "") {
  return recipe::parse_recipe(
      text("[model]\nname = \"", model,
           "\"\nwidth = 16\nclasses = 4\nchannels = 12\n[data]\nname = \"random\"\n",
           "targets = \"normal\"\ncount = 48\nshape = [12]\n[train]\nbatch = 12\nepochs = 1\n",
           "loss = \"mean_squared_error\"\npredict = false\n[devices]\n",
           "use = \"virtual:4x64MiB\"\nthreads = 1\n", more),
      "small.toml");
}

// Every usual way is searched again without bounds: none is better in the planner's own simulation.
TEST(ChoosePlan, IsNeverWorseThanAPreset) {
  for (const recipe::Recipe& recipe : {small("mlp"), small("toy"), small("two_linears")}) {
    const Device device = planned_devices(recipe.devices.use).at(0);
    const PlannedRecipe model(recipe, {}, {.device = device, .count = 4});
    const plan::Machine machine = machine_of_device(device);
    for (const int devices : {1, 2, 4}) {
      const plan::PlanRequest request{.devices = devices, .batch = model.batch()};
      const plan::BestPlan best =
          plan::find_best_plan(model, machine, request, plan::DeviceUse::Any);
      int compared = 0;
      for (const plan::UsualWay& way : plan::usual_ways(devices)) {
        plan::PlanRequest own = request;
        own.devices = way.devices;
        own.kept = way.kept;
        own.simulate_all = true;
        own.top = 1;
        if (!plan::has_legal_strategy(model, own)) continue;
        for (const plan::Plan& other : plan::find_plans(model, machine, own).best) {
          ++compared;
          EXPECT_LE(best.plan.step.seconds, other.step.seconds)
              << recipe.model.name << " on " << devices << ", " << way.name << ": "
              << to_string(other.strategy) << " beats " << to_string(best.plan.strategy);
        }
      }
      EXPECT_GT(compared, 0) << recipe.model.name << " on " << devices;
    }
  }
}

TEST(ChoosePlan, WritesThePlanIntoTheRecipe) {
  recipe::Recipe recipe = small("mlp", "[pipeline]\nbalance = [1, 1]\nmicro_batches = 3\n");
  recipe.name = "mine";
  recipe.plan.automatic = true;
  recipe.plan.goal = "memory";
  recipe.plan.keep = {"pipeline=2,data=2,level=3,schedule=1f1b"};
  const ChosenPlan chosen = choose_plan(recipe, {}, {});
  EXPECT_EQ(chosen.recipe.name, "mine");
  EXPECT_EQ(chosen.recipe.plan, recipe::Recipe::Plan());
  EXPECT_EQ(chosen.recipe.mesh.pipeline, 2);
  EXPECT_EQ(chosen.recipe.mesh.shard, 2);
  EXPECT_EQ(chosen.recipe.mesh.shard_level, "parameters");
  EXPECT_EQ(chosen.recipe.pipeline.balance.size(), 2u);
  EXPECT_EQ(chosen.recipe.devices.use, "virtual:4x64MiB");
  ASSERT_GE(chosen.reasons.size(), 4u);
  EXPECT_THAT(chosen.reasons[0], HasSubstr("plan      tensor 1 · pipeline 2 · data 2 · ZeRO-3"));
  EXPECT_THAT(join(chosen.reasons, "\n"),
              AllOf(HasSubstr(" per step by simulation ("), HasSubstr("second: "),
                    HasSubstr("in place of the recipe's 'balance'")));
  const auto report = nlohmann::json::parse(chosen.report);
  EXPECT_EQ(report["goal"], "memory");
  EXPECT_EQ(report["strategy"]["level"], 3);
}

// A launcher has fixed the number of ranks. One rank measures, and its choice is that of all.
TEST(ChoosePlan, IsTheSameOnEveryRank) {
  recipe::Recipe recipe = small("mlp");
  recipe.plan.automatic = true;
  install_virtual_devices({.count = 4, .threads_per_device = 1});
  for (const int ranks : {2, 3, 4}) {
    const auto plans = spawn(ranks, [&](World& world) {
      TrainHooks hooks;
      hooks.world = &world;
      const ChosenPlan chosen = choose_plan(recipe, hooks, {.world = &world});
      return std::tuple(recipe::to_toml(chosen.recipe), chosen.report, chosen.reasons);
    });
    for (const auto& plan : plans) EXPECT_EQ(plan, plans[0]);
    const auto report = nlohmann::json::parse(std::get<1>(plans[0]));
    EXPECT_EQ(report["devices"], ranks) << "all ranks are used";
  }
}

TEST(ChoosePlan, RefusalsHaveTheReasonsOfTrestlePlan) {
  recipe::Recipe recipe = small("mlp");
  recipe.plan.automatic = true;
  const auto refusal = [&] {
    try {
      choose_plan(recipe, {}, {});
    } catch (const UsageError& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  recipe.plan.memory = "1KiB";
  EXPECT_THAT(refusal(), AllOf(HasSubstr("None of "), HasSubstr("least memory: ")));
  recipe.plan.memory = "";
  recipe.plan.keep = {"pipeline=3"};
  EXPECT_THAT(refusal(), HasSubstr("no strategy is legal for 4 devices"));
  recipe.plan.keep = {"pipelines=2"};
  EXPECT_THAT(refusal(), HasSubstr("pipelines"));
  recipe.plan.keep = {};
  recipe.train.deepspeed_config = "{}";
  EXPECT_THAT(refusal(), HasSubstr("DeepSpeed"));
}

class PlannedTraining : public Training {};

// The run folder has the plan, and a resumed run keeps it.
TEST_F(PlannedTraining, RunsAndResumesItsPlan) {
  recipe::Recipe planned = recipe();
  planned.plan.automatic = true;
  planned.plan.keep = {"pipeline=2,data=1,tensor=1"};
  TrainHooks own = hooks(2);
  Notes notes;
  own.progress = &notes;
  EXPECT_THROW(train(planned, own), UsageError);  // this program plans nothing
  own.choose_plan = [&](const recipe::Recipe& given) { return choose_plan(given, own, {}); };
  const TrainResult part = train(planned, own);
  EXPECT_FALSE(part.finished);
  EXPECT_THAT(notes.lines, HasSubstr("plan      tensor 1 · pipeline 2 · data 1"));
  const RunFolder folder{part.run_folder};
  const auto report = nlohmann::json::parse(read_file(folder.plan()));
  EXPECT_EQ(report["strategy"]["pipeline"], 2);
  const recipe::Recipe saved = recipe_of(folder);
  EXPECT_FALSE(saved.plan.automatic);
  EXPECT_EQ(saved.pipeline.balance.size(), 2u);
  int planned_again = 0;
  own.stop_after_steps = 0;
  own.choose_plan = [&](const recipe::Recipe& given) {
    ++planned_again;
    return choose_plan(given, own, {});
  };
  EXPECT_TRUE(resume(part.run_folder, {}, own).finished);
  EXPECT_EQ(planned_again, 0);
  EXPECT_EQ(recipe::to_toml(recipe_of(folder)), recipe::to_toml(saved));
}

}  // namespace
}  // namespace trestle::train
