#include "trestle/deepspeed/config/to_recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "tests/support/message_of.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"

namespace trestle::deepspeed {
namespace {

using recipe::parse_recipe;
using recipe::Recipe;
using recipe::set_field;
using support::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using Changes = std::vector<std::pair<std::string, std::string>>;

class DeepspeedRecipe : public ::testing::Test {
 protected:
  DeepspeedRecipe()
      : file_(std::filesystem::path(TRESTLE_BINARY_DIR) / "scratch" /
              text("deepspeed_recipe_", getpid(), ".json")) {
    std::filesystem::create_directories(file_.parent_path());
  }
  ~DeepspeedRecipe() override { std::filesystem::remove(file_); }

  DeepspeedRun run(const std::string& json, int ranks, const Recipe& recipe = {},
                   const Changes& given = {}) const {
    write_file(file_, json);
    return deepspeed_run(file_, recipe, ranks, given);
  }
  Recipe changed(const std::string& json, int ranks, Recipe recipe = {}) const {
    for (const auto& [name, value] : run(json, ranks, recipe).changes)
      set_field(recipe, name, value);
    return recipe;
  }

  std::filesystem::path file_;
};

TEST_F(DeepspeedRecipe, MapsTheBatchOfAllRanksAndStagesToLevels) {
  for (int stage = 0; stage < 4; ++stage) {
    const Recipe recipe = changed(text(R"({"train_batch_size": 48, "gradient_accumulation_steps": 3,
                         "zero_optimization": {"stage": )",
                                       stage, "}}"),
                                  4);
    EXPECT_EQ(recipe.train.batch, 16);
    EXPECT_EQ(recipe.train.accumulate, 3);
    EXPECT_EQ(recipe.mesh.replicate, stage == 0 ? 4 : 1);
    EXPECT_EQ(recipe.mesh.shard, stage == 0 ? 1 : 4);
    const char* levels[] = {"parameters", "optimizer_state", "gradients", "parameters"};
    EXPECT_EQ(recipe.mesh.shard_level, levels[stage]);
  }
  const Recipe mics = changed(
      R"({"train_batch_size": 8, "zero_optimization": {"stage": 3, "mics_shard_size": 2}})", 4);
  EXPECT_EQ(mics.mesh.replicate, 2);
  EXPECT_EQ(mics.mesh.shard, 2);
}

// The ranks of a pipeline count as one rank in DeepSpeed.
TEST_F(DeepspeedRecipe, CountsAPipelineAsOneRank) {
  Recipe recipe;
  recipe.mesh.pipeline = 2;
  const Recipe two = changed(R"({"train_micro_batch_size_per_gpu": 8})", 4, recipe);
  EXPECT_EQ(two.train.batch, 16);
  EXPECT_EQ(two.mesh.replicate, 2);
  EXPECT_THROW(run(R"({"train_batch_size": 8})", 3, recipe), UsageError);
}

TEST_F(DeepspeedRecipe, KeepsTheRecipeWhereTheFileIsSilent) {
  Recipe recipe;
  recipe.optimizer.clip_grad_norm = 0.5;
  recipe.optimizer.learning_rate_schedule = "cosine";
  recipe.train.precision = "bf16";
  const DeepspeedRun plain = run(R"({"train_batch_size": 8})", 2, recipe);
  EXPECT_THAT(plain.description,
              AllOf(HasSubstr("precision   bf16, from the recipe"),
                    HasSubstr("optimizer   adam, from the recipe"),
                    HasSubstr("schedule    cosine, from the recipe"),
                    HasSubstr("clipping    a gradient norm above 0.5, from the recipe")));
  const Recipe all = changed(R"({"train_batch_size": 8, "fp16": {"enabled": true},
      "gradient_clipping": 2, "dataloader_drop_last": false,
      "optimizer": {"type": "SGD", "params": {"lr": 0.25, "momentum": 0.5, "nesterov": true}},
      "scheduler": {"type": "LRRangeTest", "params": {}}})",
                             2, recipe);
  EXPECT_EQ(all.train.precision, "fp16");
  EXPECT_FALSE(all.train.drop_last);
  EXPECT_EQ(all.optimizer.clip_grad_norm, 2);
  EXPECT_EQ(all.optimizer.name, "sgd");
  EXPECT_EQ(all.optimizer.learning_rate, 0.25);
  EXPECT_EQ(all.optimizer.momentum, 0.5);
  EXPECT_TRUE(all.optimizer.nesterov);
  EXPECT_EQ(all.optimizer.learning_rate_schedule, "constant");
}

TEST_F(DeepspeedRecipe, ClipsAsDeepspeedWhereNeitherSideNamesANorm) {
  EXPECT_EQ(changed(R"({"train_batch_size": 8})", 2).optimizer.clip_grad_norm, 1);
  EXPECT_EQ(
      changed(R"({"train_batch_size": 8, "gradient_clipping": 0})", 2).optimizer.clip_grad_norm, 0);
  Recipe recipe;
  const DeepspeedRun flagged =
      run(R"({"train_batch_size": 8})", 2, recipe, {{"optimizer.clip_grad_norm", "0"}});
  EXPECT_THAT(flagged.description, HasSubstr("clipping    none"));
}

// It does not depend on the number of ranks that resume the run.
TEST_F(DeepspeedRecipe, KeepsSettingsWithoutAKey) {
  const Recipe recipe =
      changed(R"({"train_batch_size": 8, "gradient_accumulation_steps": 2, // of two
      "fp16": {"enabled": true, "hysteresis": 5, "initial_scale_power": 4},
      "optimizer": {"type": "AdamW", "params": {"lr": 0.25}},
      "scheduler": {"type": "WarmupLR", "params": {"warmup_num_steps": 7, "warmup_max_lr": 0.5}},
      "zero_optimization": {"stage": 3, "mics_shard_size": 2, "reduce_bucket_size": 1234}})",
              2);
  EXPECT_FALSE(deepspeed_config_of({}).has_value());
  const Recipe again = parse_recipe(to_toml(recipe), "again.toml");
  const auto config = deepspeed_config_of(again);
  ASSERT_TRUE(config.has_value());
  EXPECT_EQ(config->scaler.hysteresis, 5);
  EXPECT_EQ(config->scaler.initial_scale, 16);
  EXPECT_EQ(config->schedule.value().warmup_num_steps, 7);
  EXPECT_EQ(config->reduce_bucket, 1234);
}

TEST_F(DeepspeedRecipe, RejectsAllContradictingFlagsTogether) {
  Recipe recipe;
  recipe.train.batch = 32;
  recipe.train.accumulate = 1;
  recipe.train.precision = "bf16";
  const std::string json = R"({"train_batch_size": 64, "fp16": {"enabled": true}})";
  try {
    run(json, 4, recipe,
        {{"train.batch", "32"}, {"train.accumulate", "1"}, {"train.precision", "bf16"}});
    ADD_FAILURE() << "no error";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("--batch 32 contradicts "), HasSubstr("sets 64"),
                                    HasSubstr("--precision \"bf16\" contradicts "),
                                    Not(HasSubstr("accumulate"))));
  }
  EXPECT_NO_THROW(run(json, 4, recipe));  // the file replaces the recipe's values
}

// Both values are valid in DeepSpeed's file.
TEST_F(DeepspeedRecipe, RejectsValuesThatARecipeDoesNotAllow) {
  const std::string message = message_of<UsageError>([&] {
    run(R"({"train_batch_size": 1e12, "optimizer": {"type": "SGD", "params": {"momentum": 1.5}}})",
        2);
  });
  EXPECT_THAT(message,
              AllOf(HasSubstr(file_.string() + ": in a recipe, 'batch' in [train]"),
                    HasSubstr("'momentum' in [optimizer] must be a number from 0 to 1, not 1.5")));
}

TEST_F(DeepspeedRecipe, RejectsTwoSchedules) {
  const std::string json = R"({"train_batch_size": 8, "scheduler": {"type": "LRRangeTest"}})";
  Recipe recipe = changed(json, 2);
  EXPECT_EQ(deepspeed_config_of(recipe)->schedule->type, "LRRangeTest");
  recipe.optimizer.learning_rate_schedule = "cosine";
  recipe.optimizer.plateau = true;
  EXPECT_THAT(message_of<UsageError>([&] { deepspeed_config_of(recipe); }),
              AllOf(HasSubstr("scheduler LRRangeTest"), HasSubstr("\"cosine\", plateau = true")));
}

TEST_F(DeepspeedRecipe, ReadsAPipeOnce) {
  std::filesystem::remove(file_);
  ASSERT_EQ(mkfifo(file_.c_str(), 0600), 0);
  std::thread writer([&] { std::ofstream(file_) << R"({"train_batch_size": 8})"; });
  const DeepspeedRun read = deepspeed_run(file_, {}, 2, {});
  writer.join();
  EXPECT_THAT(read.description, HasSubstr("8 per step"));
}

}  // namespace
}  // namespace trestle::deepspeed
