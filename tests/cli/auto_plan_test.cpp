// `trestle train --auto` as a user types it.
#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/cli/program.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/cli/auto_plan.h"
#include "trestle/recipe/recipe.h"

namespace trestle {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class TrainAuto : public ProgramTest {
 protected:
  void SetUp() override {
    ProgramTest::SetUp();
    write_file(folder_ / "tiny.toml", two_linears_recipe);
  }
  static Finished train(const std::vector<std::string>& more) {
    std::vector<std::string> words = {"train", "tiny.toml", "--auto"};
    words.insert(words.end(), more.begin(), more.end());
    return run(words);
  }
  static nlohmann::json plan_of(const std::string& name) {
    return nlohmann::json::parse(read_file(folder_ / "runs" / name / "plan.json"));
  }
  static std::string recipe_of(const std::string& name) {
    return read_file(folder_ / "runs" / name / "recipe.toml");
  }
  static void expect_same_losses(const std::string& expected, const std::string& actual) {
    const auto a = numbers(expected, "loss"), b = numbers(actual, "loss");
    ASSERT_EQ(a.size(), b.size());
    EXPECT_FALSE(a.empty());
    for (std::size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-5) << actual;
  }
};

// This process plans, and starts the ranks of the plan.
TEST_F(TrainAuto, RunsItsPlanAndResumesIt) {
  ASSERT_EQ(run({"train", "tiny.toml", "--name", "plain", "--devices", "cpu", "--quiet"}).code, 0);
  const Finished done =
      train({"--name", "own", "--devices", "4", "--keep", "data=2,pipeline=2,level=1"});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, AllOf(HasSubstr("plan      tensor 1 · pipeline 2 · data 2 · ZeRO-1"),
                              HasSubstr(" per step by simulation ("), HasSubstr("second: ")));
  EXPECT_EQ(plan_of("own")["strategy"]["data"], 2);
  EXPECT_THAT(recipe_of("own"), AllOf(HasSubstr("pipeline = 2\n"), HasSubstr("shard = 2\n"),
                                      HasSubstr("use = \"virtual:4\""), HasSubstr("auto = false")));
  expect_same_losses("plain", "own");
  const Finished rest = run({"train", "--resume", "runs/own", "--epochs", "3"});
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_THAT(rest.out, Not(HasSubstr("presets: ")));
  EXPECT_THAT(recipe_of("own"), HasSubstr("shard = 2\n"));
  const Finished again = run({"train", "--resume", "runs/own", "--auto"});
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr("'plan.auto' has no effect with --resume"));
}

// No file remains of a run that is killed.
TEST(PlanForRanks, HasNoFileInAnyFolder) {
  recipe::Recipe recipe = recipe::parse_recipe(two_linears_recipe, "a.b.toml");
  recipe.mesh.pipeline = 2;
  std::string file;
  {
    const cli::PlanForRanks plan(recipe, "{\"chosen\":1}\n");
    file = plan.file();
    EXPECT_TRUE(file.starts_with("/proc/")) << file;
    const auto read = [&] { return cli::read_plan_for_ranks(file); };
    EXPECT_EQ(recipe::to_toml(read().recipe), recipe::to_toml(recipe));
    EXPECT_EQ(read().recipe.name, "a.b");
    EXPECT_EQ(read().report, "{\"chosen\":1}\n");
  }
  EXPECT_FALSE(fs::exists(file));
  const fs::path other = fs::path(testing::TempDir()) / "no_plan";
  write_file(other, two_linears_recipe);
  EXPECT_THROW(cli::read_plan_for_ranks(other), UsageError);
}

// The launcher fixes the number of ranks; its first rank plans for all.
TEST_F(TrainAuto, RanksOfALauncherShareOnePlan) {
  for (const std::vector<std::string>& ranks :
       {std::vector<std::string>{"--ranks", "threads:2"}, {"--ranks", "2"}}) {
    std::vector<std::string> words = {"--name", "ranks" + ranks[1].substr(0, 1)};
    words.insert(words.end(), ranks.begin(), ranks.end());
    const Finished done = train(words);
    ASSERT_EQ(done.code, 0) << done.err;
    EXPECT_EQ(plan_of(words[1])["devices"], 2);
  }
  const Finished launched = run({"launch", "-n", "2", "--prefix", "off", "--", TRESTLE_PROGRAM,
                                 "train", "tiny.toml", "--auto", "--name", "launched"});
  ASSERT_EQ(launched.code, 0) << launched.err;
  EXPECT_THAT(launched.out, HasSubstr("plan      tensor "));
  EXPECT_EQ(plan_of("launched")["devices"], 2);
  EXPECT_THAT(recipe_of("launched"), HasSubstr("auto = false"));
}

TEST_F(TrainAuto, ReadsPlanFromTheRecipe) {
  write_file(folder_ / "tiny.toml",
             text(two_linears_recipe, "[plan]\nauto = true\nkeep = ", "[\"pipeline=2\"]\n"));
  const Finished dry = run({"train", "tiny.toml", "--dry-run"});
  ASSERT_EQ(dry.code, 0) << dry.err;
  EXPECT_THAT(dry.out, AllOf(HasSubstr("plan      tensor 1 · pipeline 2 · data 1"),
                             HasSubstr("stage 1   virtual:1")));
  EXPECT_FALSE(fs::exists(folder_ / "runs/tiny"));
  const Finished json = run({"train", "tiny.toml", "--json", "--epochs", "1"});
  ASSERT_EQ(json.code, 0) << json.err;
  for (const std::string& line : split(trim(json.out), '\n'))
    EXPECT_TRUE(nlohmann::json::accept(line)) << line;
  EXPECT_THAT(json.out, HasSubstr("pipeline 2"));
  const Finished other = run({"balance", "tiny.toml"});
  EXPECT_EQ(other.code, 2);
  EXPECT_THAT(other.err, HasSubstr("'auto' in [plan] needs a planner"));
}

TEST_F(TrainAuto, RefusesWhatContradictsThePlan) {
  const auto refusal = [](const std::vector<std::string>& more) {
    const Finished done = train(more);
    EXPECT_EQ(done.code, 2) << join(more, " ") << done.out;
    return done.err;
  };
  EXPECT_THAT(refusal({"--mesh", "pipeline=2,shard=2"}),
              AllOf(HasSubstr("lays out the ranks"), HasSubstr("--keep pipeline=2,data=2")));
  EXPECT_THAT(refusal({"--micro-batches", "4"}),
              AllOf(HasSubstr("'pipeline.micro_batches' is what --auto chooses"),
                    HasSubstr("--keep micro_batch=4")));
  EXPECT_THAT(refusal({"--set", "mesh.tensor=2"}), HasSubstr("--keep tensor=2"));
  EXPECT_THAT(refusal({"--deepspeed", "none.json"}), HasSubstr("--deepspeed and --auto"));
  EXPECT_THAT(refusal({"--memory", "1KiB"}),
              AllOf(HasSubstr("None of "), HasSubstr("least memory: ")));
  EXPECT_THAT(refusal({"--devices", "0"}),
              HasSubstr("--devices 0: a plan needs at least one device"));
  EXPECT_THAT(refusal({"--devices", "2", "--ranks", "4"}),
              HasSubstr("--devices 2 has no effect: each of the 4 ranks has one device"));
  EXPECT_THAT(refusal({"--devices", "3", "--keep", "data=3"}),
              HasSubstr("no strategy is legal for 3 devices"));
  EXPECT_THAT(run({"train", "tiny.toml", "--keep", "data=2"}).err,
              HasSubstr("'keep' in [plan] has no effect without 'auto'"));
}

}  // namespace
}  // namespace trestle
