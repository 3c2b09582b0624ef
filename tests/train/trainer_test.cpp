#include "trestle/train/trainer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/training_checkpoint.h"
#include "trestle/data/synthetic/synthesize.h"
#include "trestle/train/run_folder.h"

namespace trestle::train {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// Convolution, batch statistics, dropout and a skip: whatever could tell a resumed
// run from an uninterrupted one.
nn::Layers make_mine(const models::ModelOptions& options) {
  nn::Layers net(nn::Seed{options.seed});
  net.add("in",
          [] { return torch::nn::Conv2d(torch::nn::Conv2dOptions(1, 4, 3).stride(2).padding(1)); })
      .keep_output("skip");
  net.add("norm", torch::nn::BatchNorm2d(4));
  net.add("drop", torch::nn::Dropout(0.3));
  net.add("add", [](at::Tensor x, at::Tensor skip) { return (x + skip).relu().flatten(1); })
      .take("skip");
  net.add("out", [] { return torch::nn::Linear(4 * 14 * 14, 10); });
  return net;
}

class Trainer : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    base_ = fs::path(TRESTLE_BINARY_DIR) / "scratch" / text("trainer_", getpid());
    fs::remove_all(base_);
    data::synthesize_mnist(base_ / "mnist", 40, {.test_count = 20, .seed = 42, .progress = {}});
  }
  static void TearDownTestSuite() { fs::remove_all(base_); }

  static recipe::Recipe recipe() {
    recipe::Recipe recipe;
    recipe.name = testing::UnitTest::GetInstance()->current_test_info()->name();
    recipe.model.name = "mine";
    recipe.data.name = "mnist";
    recipe.data.folder = (base_ / "mnist").string();
    recipe.devices.use = "virtual:2";
    recipe.pipeline.balance = {2, 3};
    recipe.pipeline.micro_batches = 2;
    recipe.pipeline.recompute = {"except_last"};
    recipe.optimizer.learning_rate = 0.01;
    recipe.train.epochs = 2;
    recipe.train.batch = 12;
    recipe.train.runs = (base_ / "runs").string();
    return recipe;
  }

  static TrainHooks hooks(std::int64_t stop_after_steps = 0) {
    TrainHooks hooks;
    hooks.models = {{"mine", make_mine}};
    hooks.stop_after_steps = stop_after_steps;
    return hooks;
  }

  // metrics.jsonl without what a clock says.
  static std::string metrics(const fs::path& run) {
    std::string kept;
    for (const std::string& line : split(read_file(run / "metrics.jsonl"), '\n'))
      kept += line.substr(0, line.find(",\"examples_per_second\"")) + "\n";
    return kept;
  }

  inline static fs::path base_;
};

TEST_F(Trainer, LeavesEverythingInTheRunFolder) {
  const TrainResult result = train(recipe(), hooks());
  EXPECT_TRUE(result.finished);
  EXPECT_EQ(result.epochs, 2);
  EXPECT_EQ(result.steps, 6) << "40 examples: 3 whole batches of 12 an epoch";
  EXPECT_EQ(result.peaks.size(), 2u);
  EXPECT_GT(result.peaks[0].measured, 0);
  for (const char* name :
       {"recipe.toml", "metrics.jsonl", "timeline.json", "timeline.svg", "curve.svg",
        "environment.json", "best.safetensors", "last/state.json", "last/weights.safetensors",
        "last/optimizer.safetensors", "pictures/epoch_001.png", "pictures/epoch_002.png"})
    EXPECT_TRUE(fs::exists(result.run_folder / name)) << name;
  const auto best = checkpoint::read_tensors(result.run_folder / "best.safetensors");
  std::vector<std::string> names;
  for (const auto& [name, tensor] : best.tensors) names.push_back(name);
  EXPECT_THAT(names, testing::UnorderedElementsAre(
                         "in.weight", "in.bias", "norm.weight", "norm.bias", "norm.running_mean",
                         "norm.running_var", "norm.num_batches_tracked", "out.weight", "out.bias"));
}

TEST_F(Trainer, ContinuesAtAnyStepToTheSameBits) {
  const TrainResult whole = train(recipe(), hooks());
  const std::string weights = read_file(whole.run_folder / "last/weights.safetensors");
  const std::string optimizer = read_file(whole.run_folder / "last/optimizer.safetensors");
  for (const std::int64_t steps : {1, 3, 4}) {
    TrainResult part = train(recipe(), hooks(steps));
    EXPECT_FALSE(part.finished);
    EXPECT_EQ(part.steps, steps);
    part = resume(part.run_folder, {}, hooks());
    EXPECT_TRUE(part.finished);
    EXPECT_EQ(read_file(part.run_folder / "last/weights.safetensors"), weights)
        << "stopped after " << steps;
    EXPECT_EQ(read_file(part.run_folder / "last/optimizer.safetensors"), optimizer)
        << "stopped after " << steps;
    EXPECT_EQ(metrics(part.run_folder), metrics(whole.run_folder)) << "stopped after " << steps;
  }
}

TEST_F(Trainer, ClipsGradientsOverAllStages) {
  recipe::Recipe clipped = recipe();
  clipped.optimizer.name = "sgd";
  clipped.optimizer.learning_rate = 1;
  clipped.optimizer.clip_grad_norm = 1e-3;
  const TrainResult result = train(clipped, hooks(1));
  const auto after = checkpoint::read_tensors(result.run_folder / "last/weights.safetensors");
  std::map<std::string, at::Tensor> trained(after.tensors.begin(), after.tensors.end());
  const nn::Layers before =
      make_mine({.name = "mine", .seed = static_cast<std::uint64_t>(clipped.train.seed)});
  double squares = 0;
  for (const auto& [name, parameter] : before.named_parameters()) {
    squares += (trained.at(name) - parameter).to(at::kDouble).square().sum().item<double>();
  }
  EXPECT_NEAR(std::sqrt(squares), 1e-3, 1e-5);  // one step of size 1 along the clipped gradients
}

TEST_F(Trainer, AskedForMoreEpochsItGoesOn) {
  recipe::Recipe shorter = recipe();
  shorter.train.epochs = 1;
  const TrainResult first = train(shorter, hooks());
  const TrainResult more = resume(first.run_folder, {{"train.epochs", "2"}}, hooks());
  const TrainResult whole = train(recipe(), hooks());
  EXPECT_EQ(read_file(more.run_folder / "last/weights.safetensors"),
            read_file(whole.run_folder / "last/weights.safetensors"));
  EXPECT_EQ(recipe_of(open_run_folder(more.run_folder)).train.epochs, 2);
}

TEST_F(Trainer, RefusesToContinueAnotherRecipe) {
  const TrainResult first = train(recipe(), hooks(1));
  try {
    resume(first.run_folder, {{"train.batch", "6"}}, hooks());
    FAIL() << "nothing was thrown";
  } catch (const UsageError& error) {
    EXPECT_THAT(
        error.what(),
        HasSubstr("'batch' in [train] cannot change in the middle of a run: it is 12 there, 6"));
  }
  EXPECT_THROW(resume(base_ / "nowhere", {}, hooks()), UsageError);
}

TEST_F(Trainer, AnEarlierRunIsNeverWrittenOver) {
  const TrainResult first = train(recipe(), hooks(1));
  const std::string before = read_file(first.run_folder / "last/weights.safetensors");
  const TrainResult second = train(recipe(), hooks(2));
  EXPECT_NE(first.run_folder, second.run_folder);
  EXPECT_EQ(read_file(first.run_folder / "last/weights.safetensors"), before);
}

TEST_F(Trainer, ALossThatRunsAwayIsAnErrorAndKeepsTheLastSave) {
  recipe::Recipe wild = recipe();
  wild.optimizer.name = "sgd";
  wild.optimizer.learning_rate = 1e6;
  wild.optimizer.weight_decay = 1e6;
  wild.train.epochs = 30;
  try {
    train(wild, hooks());
    FAIL() << "nothing was thrown";
  } catch (const Error& error) {
    EXPECT_THAT(error.what(), HasSubstr("the loss became"));
    EXPECT_THAT(error.what(), HasSubstr("learning_rate"));
  }
}

TEST_F(Trainer, ThePlateauOptionLowersTheLearningRate) {
  recipe::Recipe flat = recipe();
  flat.optimizer.learning_rate = 1e-12;
  flat.optimizer.plateau = true;
  flat.optimizer.plateau_patience = 0;
  flat.optimizer.plateau_factor = 0.5;
  flat.train.epochs = 3;
  const TrainResult result = train(flat, hooks());
  EXPECT_THAT(metrics(result.run_folder), HasSubstr("\"learning_rate\":5e-13"));
}

TEST_F(Trainer, ThePlanIsMadeWithoutARunFolder) {
  const RunPlan plan = plan_run(recipe(), hooks());
  EXPECT_EQ(plan.layers, 5);
  EXPECT_EQ(plan.stages.size(), 2u);
  EXPECT_GT(plan.predicted_seconds, 0);
  EXPECT_GT(plan.stages[0].predicted_peak, 0);
  EXPECT_FALSE(fs::exists(fs::path(recipe().train.runs) / recipe().name));
}

TEST_F(Trainer, MistakesInTheRecipeAreFoundBeforeAnythingIsMade) {
  recipe::Recipe bad = recipe();
  bad.pipeline.balance = {2, 2};
  EXPECT_THROW(train(bad, hooks()), UsageError);
  bad = recipe();
  bad.train.loss = "dice";
  bad.pipeline.schedule = "1f1b";
  EXPECT_THROW(train(bad, hooks()), UsageError);
  EXPECT_FALSE(fs::exists(fs::path(recipe().train.runs) / recipe().name));
}

}  // namespace
}  // namespace trestle::train
