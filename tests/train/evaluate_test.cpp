#include "trestle/train/predict/evaluator.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

#include "tests/train/training.h"
#include "trestle/data/files/image_file.h"
#include "trestle/train/run_folder/metrics.h"

namespace trestle::train {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Evaluate : public Training {
 protected:
  static EvaluateOptions options(const fs::path& run, Checkpoint which = Checkpoint::Best) {
    EvaluateOptions options{.run = run, .checkpoint = which};
    options.models = hooks().models;
    return options;
  }
  static std::string refusal(const EvaluateOptions& options) {
    try {
      evaluate(options);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "taken";
  }
  // Writes <folder>/<class>/<n>.png, each class in its own grey.
  static void draw_classes(const fs::path& folder,
                           const std::vector<std::pair<std::string, int>>& classes, int count) {
    for (const auto& [name, grey] : classes) {
      fs::create_directories(folder / name);
      for (int i = 0; i < count; ++i) {
        data::Image image = data::Image::blank(28, 28, 1);
        std::ranges::fill(image.pixels, static_cast<std::uint8_t>(grey + i));
        data::write_png(folder / name / text(i, ".png"), image);
      }
    }
  }
  static recipe::Recipe of_classes(const fs::path& folder) {
    recipe::Recipe wanted = recipe();
    wanted.data.name = "classification";
    wanted.data.folder = folder.string();
    wanted.model.channels = 1;
    wanted.train.batch = 4;
    return wanted;
  }
};

// Equal to the bit: the same devices, batches and order of arithmetic.
TEST_F(Evaluate, EqualsMetricsOfRun) {
  const fs::path run = train(recipe(), hooks()).run_folder;
  const std::vector<EpochReport> epochs = read_epochs(run / "metrics.jsonl");
  ASSERT_EQ(epochs.size(), 2u);
  const EvaluateResult last = evaluate(options(run, Checkpoint::Last));
  EXPECT_EQ(last.epoch, 2);
  EXPECT_EQ(last.step, epochs[1].step);
  EXPECT_EQ(last.examples, 20);
  EXPECT_TRUE(last.synthetic_data);
  EXPECT_FALSE(last.others);
  EXPECT_EQ(last.metric_name, "accuracy");
  EXPECT_EQ(last.validation_loss, *epochs[1].validation_loss);
  EXPECT_EQ(last.metric, *epochs[1].metric);
  const EvaluateResult best = evaluate(options(run));
  const EpochReport& of_best = epochs.at(static_cast<std::size_t>(best.epoch - 1));
  EXPECT_EQ(best.weights, run / "best.safetensors");
  EXPECT_EQ(best.validation_loss, *of_best.validation_loss);
  EXPECT_EQ(best.metric, *of_best.metric);
  const auto json = nlohmann::json::parse(to_json(best));
  EXPECT_EQ(json["accuracy"].get<double>(), *of_best.metric);
  EXPECT_EQ(json["validation_loss"].get<double>(), *of_best.validation_loss);
  const EvaluateResult file = evaluate(options(run / "best.safetensors"));
  EXPECT_EQ(file.validation_loss, best.validation_loss);
  EXPECT_EQ(file.epoch, best.epoch);
}

// Another cut and other batches change only the order of arithmetic.
TEST_F(Evaluate, EqualsMetricsToRoundingOnOtherDevices) {
  recipe::Recipe wanted = recipe();
  wanted.train.epochs = 1;
  const fs::path run = train(wanted, hooks()).run_folder;
  const EpochReport epoch = read_epochs(run / "metrics.jsonl").at(0);
  EvaluateOptions other = options(run);
  other.changes = {{"devices.use", "cpu"}, {"train.batch", "7"}, {"pipeline.micro_batches", "1"}};
  const EvaluateResult result = evaluate(other);
  EXPECT_NEAR(result.validation_loss, *epoch.validation_loss, 1e-5);
  EXPECT_EQ(result.metric, *epoch.metric);
}

TEST_F(Evaluate, EvaluatesStoppedRun) {
  recipe::Recipe wanted = recipe();
  wanted.train.epochs = 3;
  const TrainResult stopped = train(wanted, hooks(4));
  ASSERT_FALSE(stopped.finished);
  const EvaluateResult last = evaluate(options(stopped.run_folder, Checkpoint::Last));
  EXPECT_EQ(last.step, 4);
  EXPECT_EQ(last.epoch, 1) << "done";
}

TEST_F(Evaluate, UsesTestSplitOfOtherData) {
  data::synthesize_mnist(base_ / "others", 12, {.test_count = 30, .seed = 7, .progress = {}});
  const fs::path run = train(recipe(), hooks()).run_folder;
  EvaluateOptions other = options(run);
  other.changes = {{"data.folder", (base_ / "others").string()}};
  const EvaluateResult result = evaluate(other);
  EXPECT_EQ(result.examples, 30);
  EXPECT_TRUE(result.others);
  EXPECT_THAT(result.data, ::testing::ElementsAre((base_ / "others").string()));
}

// "cars/" is the same folder as "cars", so training examples are left out.
TEST_F(Evaluate, RecognizesSameFolderUnderOtherSpelling) {
  draw_classes(base_ / "same", {{"a", 0}, {"b", 120}}, 10);
  const fs::path run = train(of_classes(base_ / "same"), hooks()).run_folder;
  for (const char* place : {"same/", "./same", "same/../same"}) {
    EvaluateOptions again = options(run);
    again.changes = {{"data.folder", (base_ / place).string()}};
    const EvaluateResult result = evaluate(again);
    EXPECT_FALSE(result.others) << place;
    EXPECT_EQ(result.examples, 4) << place;
  }
}

// Without splits every example counts. A class keeps its number if other classes are missing.
TEST_F(Evaluate, KeepsClassNumbersInOtherClassFolders) {
  draw_classes(base_ / "sorted", {{"a", 0}, {"b", 120}, {"c", 240}}, 8);
  const fs::path run = train(of_classes(base_ / "sorted"), hooks()).run_folder;
  EXPECT_THAT(read_file(run / "recipe.toml"), HasSubstr("class_names = [\"a\", \"b\", \"c\"]"));
  EXPECT_EQ(evaluate(options(run)).examples, 4) << "a fifth of 24 samples";
  draw_classes(base_ / "without_a", {{"b", 120}, {"c", 240}}, 3);
  draw_classes(base_ / "with_a", {{"a", 0}, {"b", 120}, {"c", 240}}, 3);
  EvaluateOptions other = options(run);
  other.changes = {{"data.folder", (base_ / "without_a").string()}};
  const EvaluateResult two = evaluate(other);
  EXPECT_EQ(two.examples, 6);
  other.changes = {{"data.folder", (base_ / "with_a").string()}};
  const EvaluateResult three = evaluate(other);
  EXPECT_EQ(three.examples, 9);
  fs::remove_all(base_ / "with_a/b");
  fs::remove_all(base_ / "with_a/c");
  fs::create_directories(base_ / "with_a/b");
  const EvaluateResult one = evaluate(other);
  EXPECT_EQ(one.examples, 3);
  EXPECT_NEAR(one.validation_loss * 3 + two.validation_loss * 6, three.validation_loss * 9, 1e-4);
  draw_classes(base_ / "new_class", {{"a", 0}, {"d", 120}}, 1);
  other.changes = {{"data.folder", (base_ / "new_class").string()}};
  EXPECT_THAT(refusal(other), HasSubstr("the class 'd' is not one of a, b, c"));
}

// Void pixels: the image under them changes neither the training nor its metrics.
TEST_F(Evaluate, IgnoresVoidPixelsOfMasks) {
  const auto draw = [&](const char* name, int under_ignored) {
    const fs::path folder = base_ / name;
    for (const char* part : {"images", "masks"}) fs::create_directories(folder / part);
    for (int i = 0; i < 10; ++i) {
      data::Image image = data::Image::blank(32, 32, 3);
      data::Image mask = data::Image::blank(32, 32, 1);
      for (int y = 0; y < 32; ++y)
        for (int x = 0; x < 32; ++x) {
          const bool inside = x > 4 + i && y > 8;
          image.at(x, y, 1) = inside ? 200 : 30;
          mask.at(x, y, 0) = static_cast<std::uint8_t>(y > 24 ? under_ignored : inside);
        }
      data::write_png(folder / "images" / text(i, ".png"), image);
      data::write_png(folder / "masks" / text(i, ".png"), mask);
    }
    recipe::Recipe wanted = recipe();
    wanted.name += text("_", name);
    wanted.model.name = "unet";
    wanted.model.width = 2;
    wanted.pipeline.balance = {13, 9};
    wanted.data.name = "segmentation";
    wanted.data.images = (folder / "images").string();
    wanted.data.masks = (folder / "masks").string();
    wanted.data.mask_ignore = {"200", "255"};
    wanted.data.mask_values = {"0", "1"};
    wanted.train.batch = 4;
    wanted.train.epochs = 1;
    return wanted;
  };
  const fs::path a = train(draw("void_200", 200), hooks()).run_folder;
  const fs::path b = train(draw("void_255", 255), hooks()).run_folder;
  EXPECT_EQ(metrics(a), metrics(b));
  recipe::Recipe counted = draw("no_void", 1);
  counted.data.mask_ignore.clear();
  EXPECT_NE(metrics(train(counted, hooks()).run_folder), metrics(a));
  EvaluateOptions accuracy = options(a);
  accuracy.changes = {{"train.metric", "accuracy"}};
  EXPECT_GT(evaluate(accuracy).metric, 0);
}

TEST_F(Evaluate, SupportsOtherAndUserDefinedMetrics) {
  recipe::Recipe wanted = recipe();
  wanted.train.epochs = 1;
  const fs::path run = train(wanted, hooks()).run_folder;
  EvaluateOptions other = options(run);
  other.user_parts.metrics["misses"] = [](const at::Tensor& output, const at::Tensor& target) {
    const nn::Tally hits = nn::accuracy_tally(output, target);
    return nn::Tally{hits.count - hits.sum, hits.count};
  };
  other.changes = {{"train.metric", "misses"}};
  const EvaluateResult result = evaluate(other);
  EXPECT_EQ(result.metric_name, "misses");
  EXPECT_DOUBLE_EQ(result.metric, 1 - *read_epochs(run / "metrics.jsonl").at(0).metric);
}

TEST_F(Evaluate, RefusesInvalidRequests) {
  EXPECT_THAT(refusal(options(base_ / "none")), HasSubstr("no such run folder"));
  EXPECT_THAT(refusal(options(base_)), HasSubstr("not a run folder"));
  recipe::Recipe wanted = recipe();
  wanted.train.epochs = 1;
  data::synthesize_mnist(base_ / "gone", 40, {.test_count = 20, .seed = 42, .progress = {}});
  wanted.data.folder = (base_ / "gone").string();
  const fs::path run = train(wanted, hooks()).run_folder;
  EvaluateOptions other = options(run);
  other.changes = {{"data.images", "photos"}};
  EXPECT_THAT(refusal(other), HasSubstr("'images' in [data] has no effect for 'mnist'"));
  other.changes = {{"images", "photos"}};  // the same key in the short form of set_field()
  EXPECT_THAT(refusal(other), HasSubstr("'images' in [data] has no effect for 'mnist'"));
  other.changes = {{"devices.use", "cpu,cpu,cpu"}, {"pipeline.balance", "5,9"}};
  EXPECT_THAT(refusal(other),
              HasSubstr("'balance' in [pipeline] has 2 stages, and 3 devices are given"));
  fs::remove_all(base_ / "gone");
  EXPECT_THAT(refusal(options(run)),
              AllOf(HasSubstr((base_ / "gone").string()),
                    HasSubstr("The run was trained on these data. Choose other data with "
                              "--folder.")));
  EXPECT_FALSE(fs::exists(base_ / "gone")) << "no data are synthesized";
  fs::remove(run / "best.safetensors");
  EXPECT_THAT(refusal(options(run)), HasSubstr("has no best.safetensors yet"));
  fs::remove_all(run / "last");
  EXPECT_THAT(refusal(options(run, Checkpoint::Last)), HasSubstr("has no last yet"));
}

TEST_F(Evaluate, RefusesRunWithoutValidationData) {
  draw_classes(base_ / "all_of_them", {{"a", 0}, {"b", 120}}, 8);
  recipe::Recipe wanted = of_classes(base_ / "all_of_them");
  wanted.data.validation = 0;
  const fs::path run = train(wanted, hooks()).run_folder;
  EXPECT_THAT(refusal(options(run)),
              AllOf(HasSubstr("has no data for validation"),
                    HasSubstr("'validation' in [data] is 0 of 16 examples. Set a larger share")));
}

// 'validation' has no effect for this data set, so no message may advise it.
TEST_F(Evaluate, AdvisesWhatWorksForTheDataSet) {
  recipe::Recipe random = recipe();
  random.model.name = "mlp";
  random.model.channels = 6;
  random.model.classes = 2;
  random.pipeline.balance = {};
  random.data = {};
  random.data.name = "random";
  random.data.shape = {6};
  random.data.count = 8;
  random.train.epochs = 1;
  random.train.batch = 4;
  const fs::path run = train(random, hooks()).run_folder;
  EXPECT_THAT(refusal(options(run)), AllOf(HasSubstr("'random' has examples for training alone"),
                                           Not(HasSubstr("larger share"))));
  random.train.patience = 2;
  try {
    train(random, hooks());
    FAIL() << "patience needs validation";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("Set patience = 0"), Not(HasSubstr("share above"))));
  }
}

}  // namespace
}  // namespace trestle::train
