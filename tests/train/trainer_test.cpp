#include <gmock/gmock.h>

#include "tests/train/training.h"
#include "trestle/checkpoint/training_checkpoint.h"
#include "trestle/view/chrome_trace.h"

namespace trestle::train {
namespace {

using ::testing::HasSubstr;

class Trainer : public Training {};

TEST_F(Trainer, WritesAllFilesOfRunFolder) {
  const TrainResult result = train(recipe(), hooks());
  EXPECT_TRUE(result.finished);
  EXPECT_EQ(result.epochs, 2);
  EXPECT_EQ(result.steps, 6) << "40 examples: 3 whole batches of 12 an epoch";
  EXPECT_EQ(result.peaks.size(), 2u);
  EXPECT_GT(result.peaks[0].measured, 0);
  for (const char* name :
       {"recipe.toml", "metrics.jsonl", "timeline.json", "timeline.svg", "curve.svg",
        "environment.json", "best.safetensors", "last/index.json", "last/weights.safetensors",
        "last/optimizer.safetensors", "pictures/epoch_001.png", "pictures/epoch_002.png"})
    EXPECT_TRUE(fs::exists(result.run_folder / name)) << name;
  const auto best = checkpoint::read_tensors(result.run_folder / "best.safetensors");
  std::vector<std::string> names;
  for (const auto& [name, tensor] : best.tensors) names.push_back(name);
  EXPECT_THAT(names, ::testing::UnorderedElementsAre(
                         "in.weight", "in.bias", "norm.weight", "norm.bias", "norm.running_mean",
                         "norm.running_var", "norm.num_batches_tracked", "out.weight", "out.bias"));
}

TEST_F(Trainer, ShowsOptimizerInPredictedAndMeasuredTimeline) {
  const TrainResult result = train(recipe(), hooks());
  EXPECT_GT(result.optimizer_seconds, 0);
  EXPECT_GT(result.predicted_optimizer_seconds, 0);
  const auto panels = view::from_chrome_trace(read_file(result.run_folder / "timeline.json"));
  ASSERT_EQ(panels.size(), 2u) << "predicted and measured";
  for (const schedule::Timeline& panel : panels) {
    int norms = 0, steps = 0;
    for (const schedule::Event& event : panel.events) {
      norms += event.action.kind == schedule::Kind::Norm ? 1 : 0;
      steps += event.action.kind == schedule::Kind::Step ? 1 : 0;
    }
    EXPECT_EQ(norms, 2) << panel.title;
    EXPECT_EQ(steps, 2) << panel.title;
  }
}

TEST_F(Trainer, ResumesAtAnyStepToSameBits) {
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
  EXPECT_NEAR(std::sqrt(squares), 1e-3, 1e-5);  // one step of rate 1 along the clipped gradients
}

TEST_F(Trainer, ResumesForMoreEpochs) {
  recipe::Recipe shorter = recipe();
  shorter.train.epochs = 1;
  const TrainResult first = train(shorter, hooks());
  const TrainResult more = resume(first.run_folder, {{"train.epochs", "2"}}, hooks());
  const TrainResult whole = train(recipe(), hooks());
  EXPECT_EQ(read_file(more.run_folder / "last/weights.safetensors"),
            read_file(whole.run_folder / "last/weights.safetensors"));
  EXPECT_EQ(recipe_of(open_run_folder(more.run_folder)).train.epochs, 2);
}

TEST_F(Trainer, RefusesToResumeWithOtherRecipe) {
  const TrainResult first = train(recipe(), hooks(1));
  try {
    resume(first.run_folder, {{"train.batch", "6"}}, hooks());
    FAIL() << "nothing was thrown";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("'batch' in [train] cannot change during a run: it is 12, and 6"));
  }
  EXPECT_THROW(resume(base_ / "nowhere", {}, hooks()), UsageError);
}

TEST_F(Trainer, NeverOverwritesEarlierRun) {
  const TrainResult first = train(recipe(), hooks(1));
  const std::string before = read_file(first.run_folder / "last/weights.safetensors");
  const TrainResult second = train(recipe(), hooks(2));
  EXPECT_NE(first.run_folder, second.run_folder);
  EXPECT_EQ(read_file(first.run_folder / "last/weights.safetensors"), before);
}

TEST_F(Trainer, DivergingLossIsError) {
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

TEST_F(Trainer, PlateauLowersLearningRate) {
  recipe::Recipe flat = recipe();
  flat.optimizer.learning_rate = 1e-6;
  flat.optimizer.plateau = true;
  flat.optimizer.plateau_patience = 0;
  flat.optimizer.plateau_factor = 0.5;
  flat.train.epochs = 3;
  const TrainResult result = train(flat, hooks());
  EXPECT_THAT(metrics(result.run_folder), HasSubstr("\"learning_rate\":5e-07"));
}

TEST_F(Trainer, PlansWithoutRunFolder) {
  const RunPlan plan = plan_run(recipe(), hooks());
  EXPECT_EQ(plan.layers, 5);
  EXPECT_EQ(plan.stages.size(), 2u);
  EXPECT_GT(plan.predicted_seconds, 0);
  EXPECT_GT(plan.stages[0].predicted_peak, 0);
  EXPECT_FALSE(fs::exists(fs::path(recipe().train.runs) / recipe().name));
}

TEST_F(Trainer, FindsRecipeErrorsBeforeCreatingRunFolder) {
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
