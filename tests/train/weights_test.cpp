#include "trestle/checkpoint/weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>
#include <unistd.h>

#include <sstream>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/data/synthetic/synthesize.h"
#include "trestle/train/predict/export.h"
#include "trestle/train/trainer.h"

namespace trestle::train {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;

// Runs that start with weights from a file, and runs whose weights are exported.
class RunWeights : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    base_ = fs::path(TRESTLE_BINARY_DIR) / "scratch" / text("run_weights_", getpid());
    fs::remove_all(base_);
    data::synthesize_mnist(base_ / "mnist", 24, {.test_count = 12, .seed = 42, .progress = {}});
  }
  static void TearDownTestSuite() { fs::remove_all(base_); }

  // Learning rate 0: parameters keep their initial values.
  static recipe::Recipe recipe() {
    recipe::Recipe recipe;
    recipe.name = ::testing::UnitTest::GetInstance()->current_test_info()->name();
    recipe.model.name = "resnet18";
    recipe.model.width = 2;
    recipe.data.name = "mnist";
    recipe.data.folder = (base_ / "mnist").string();
    recipe.devices.use = "virtual:2";
    recipe.pipeline.balance = {4, 6};
    recipe.optimizer.name = "sgd";
    recipe.optimizer.learning_rate = 0;
    recipe.train.epochs = 1;
    recipe.train.batch = 12;
    recipe.train.predict = false;
    recipe.train.pictures = false;
    recipe.train.runs = (base_ / "runs").string();
    return recipe;
  }

  // Writes another seed's weights under torchvision's names.
  static fs::path other_weights(const std::string& file, std::int64_t classes = 10) {
    const nn::Layers net =
        models::make_model({.name = "resnet18", .classes = classes, .width = 2, .seed = 7});
    NamedTensors all = net.named_parameters();
    for (const auto& buffer : net.named_buffers()) all.push_back(buffer);
    checkpoint::write_weights(base_ / file, checkpoint::rename_weights(all, "torchvision"));
    return base_ / file;
  }

  // Trains and returns the printed text.
  static std::string said(const recipe::Recipe& recipe, TrainResult* result = nullptr) {
    std::ostringstream out;
    const auto progress = make_progress(ProgressStyle::Lines, Colours::Off, out);
    const TrainResult done = train(recipe, {.progress = progress.get()});
    if (result != nullptr) *result = done;
    return out.str();
  }

  template <class ErrorType>
  static std::string refusal(const recipe::Recipe& recipe) {
    try {
      train(recipe);
    } catch (const ErrorType& error) {
      return error.what();
    }
    return "nothing was thrown";
  }

  static std::map<std::string, at::Tensor> read(const fs::path& file) {
    const NamedTensors tensors = checkpoint::read_weights(file).tensors;
    return {tensors.begin(), tensors.end()};
  }

  inline static fs::path base_;
};

TEST_F(RunWeights, InitializeRun) {
  recipe::Recipe asked = recipe();
  asked.model.weights = other_weights("begin.pt").string();
  asked.model.memory_format = "channels_last";
  TrainResult result;
  EXPECT_THAT(said(asked, &result),
              HasSubstr("begin.pt: 122 tensors, under torchvision's names\n"));
  const auto given = read(base_ / "begin.pt");
  const auto have = read(result.run_folder / "last/weights.safetensors");
  EXPECT_TRUE(torch::equal(have.at("basic_block21.add.conv.weight"),
                           given.at("layer2.0.downsample.0.weight")));
  EXPECT_TRUE(torch::equal(have.at("output_layer.linear.bias"), given.at("fc.bias")));
  EXPECT_FALSE(
      torch::equal(have.at("input_layer.norm1.running_mean"), given.at("bn1.running_mean")))
      << "the run trained";
}

TEST_F(RunWeights, MissingFileIsFoundBeforeDataAreSynthesized) {
  recipe::Recipe asked = recipe();
  asked.model.weights = (base_ / "none.pt").string();
  asked.data.folder = (base_ / "not_made").string();
  asked.data.synthesize = 10;
  EXPECT_THAT(refusal<UsageError>(asked), AllOf(HasSubstr("none.pt: there is no such file"),
                                                HasSubstr("'weights' in [model]")));
  write_file(base_ / "broken.pt", "PK\x03\x04 and no more");
  asked.model.weights = (base_ / "broken.pt").string();
  EXPECT_THAT(refusal<FormatError>(asked), HasSubstr("the zip archive is broken"));
  EXPECT_FALSE(fs::exists(asked.data.folder));
}

TEST_F(RunWeights, MustMatchModel) {
  recipe::Recipe asked = recipe();
  asked.model.weights = other_weights("seven.pt", 7).string();
  EXPECT_THAT(refusal<FormatError>(asked),
              AllOf(HasSubstr("120 of its 122 tensors match, under torchvision's names"),
                    HasSubstr("'fc.weight' is Float [7, 16], but the model's "
                              "'output_layer.linear.weight' is Float [10, 16]"),
                    HasSubstr("weights_strict = false")));
  EXPECT_FALSE(fs::exists(base_ / "runs" / asked.name));

  asked.model.weights_strict = false;
  EXPECT_THAT(said(asked), AllOf(HasSubstr("120 tensors, under torchvision's names"),
                                 HasSubstr("of another shape or type (2): 'fc.weight'")));
}

TEST_F(RunWeights, AreNotReadAgainOnResume) {
  recipe::Recipe asked = recipe();
  asked.model.weights = other_weights("gone.pt").string();
  const TrainResult first = train(asked);
  fs::remove(asked.model.weights);
  const TrainResult more = resume(first.run_folder, {{"train.epochs", "2"}});
  EXPECT_EQ(more.epochs, 2);
  try {
    resume(first.run_folder, {{"train.epochs", "3"}, {"model.weights", "others.pt"}});
    FAIL() << "nothing was thrown";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("'weights' in [model] cannot change during a run"));
  }
}

TEST_F(RunWeights, AreExportedForPythonAndForOtherRuns) {
  const TrainResult result = train(recipe());
  const ExportResult made =
      export_weights({.from = result.run_folder, .out = base_ / "out.pt", .names = "torchvision"});
  EXPECT_EQ(made.tensors, 122u);
  EXPECT_EQ(made.from, result.run_folder / "best.safetensors");
  const auto best = read(result.run_folder / "best.safetensors");
  EXPECT_TRUE(torch::equal(read(base_ / "out.pt").at("layer4.1.conv2.weight"),
                           best.at("basic_block42.conv2.weight")));

  export_weights({.from = base_ / "out.pt", .out = base_ / "back.safetensors"});
  EXPECT_TRUE(torch::equal(read(base_ / "back.safetensors").at("fc.weight"),
                           best.at("output_layer.linear.weight")));
  EXPECT_EQ(export_weights(
                {.from = result.run_folder, .out = base_ / "last.pth", .which = Checkpoint::Last})
                .from,
            result.run_folder / "last");
  EXPECT_EQ(export_weights({.from = result.run_folder / "last", .out = base_ / "last_2.pth"}).from,
            result.run_folder / "last");

  recipe::Recipe again = recipe();
  again.model.weights = (base_ / "back.safetensors").string();
  TrainResult second;
  said(again, &second);
  EXPECT_TRUE(torch::equal(
      read(second.run_folder / "last/weights.safetensors").at("basic_block42.conv2.weight"),
      best.at("basic_block42.conv2.weight")));
}

TEST_F(RunWeights, AreNotExportedOverFilesOfRun) {
  recipe::Recipe kept = recipe();
  kept.name = "kept";
  const fs::path run = train(kept).run_folder;
  const std::string best = read_file(run / "best.safetensors");
  const auto refused = [](const ExportOptions& options) -> std::string {
    try {
      export_weights(options);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(refused({.from = run,
                       .out = run / "best.safetensors",
                       .which = Checkpoint::Last,
                       .names = "torchvision"}),
              HasSubstr("a file of a run"));
  EXPECT_THAT(refused({.from = run, .out = run / "last/weights.safetensors"}),
              HasSubstr("a file of a run"));
  EXPECT_EQ(read_file(run / "best.safetensors"), best);
  export_weights({.from = run, .out = base_ / "again.pt"});
  const std::string before = read_file(base_ / "again.pt");
  EXPECT_THAT(refused({.from = run, .out = base_ / "again.pt", .names = "torchvision"}),
              HasSubstr("again.pt: exists already"));
  EXPECT_EQ(read_file(base_ / "again.pt"), before);
  export_weights({.from = run, .out = base_ / "again.pt", .overwrite = Overwrite::Allow});
  EXPECT_THAT(refused({.from = base_ / "again.pt", .out = base_ / "again.pt"}),
              HasSubstr("the file to be exported"));
  export_weights({.from = run, .out = run / "mine.safetensors"});
}

TEST_F(RunWeights, InvalidExportsAreRefused) {
  const auto refused = [](const ExportOptions& options) -> std::string {
    try {
      export_weights(options);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(refused({.from = base_ / "nowhere", .out = base_ / "a.pt"}),
              HasSubstr("no such run folder"));
  EXPECT_THAT(refused({.from = base_, .out = base_ / "a.pt"}), HasSubstr("not a run folder"));
  EXPECT_THAT(refused({.from = base_, .out = base_ / "a.onnx"}), HasSubstr("Use .pt or .pth"));
  fs::create_directories(base_ / "young");
  write_file(base_ / "young/recipe.toml", recipe::to_toml(recipe()));
  EXPECT_THAT(refused({.from = base_ / "young", .out = base_ / "a.pt"}),
              HasSubstr("has no best.safetensors yet"));
  EXPECT_THAT(
      refused({.from = other_weights("tv.pt"), .out = base_ / "a.pt", .names = "reference"}),
      HasSubstr("122 of these 122 tensors have no name among the reference programs'"));
  EXPECT_FALSE(fs::exists(base_ / "a.pt"));
}

}  // namespace
}  // namespace trestle::train
