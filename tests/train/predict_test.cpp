#include "trestle/train/predict/predictor.h"

#include <gmock/gmock.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/train/training.h"
#include "trestle/data/files/image_file.h"
#include "trestle/data/files/mnist_files.h"

namespace trestle::train {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(PredictionTable, ListsMostProbableClassFirst) {
  const at::Tensor scores = torch::tensor({1.0f, 3.0f, 2.0f});
  const PredictedClasses two = most_probable(scores, {"cat", "a \"dog\", small"}, 2);
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two[0].id, 1);
  EXPECT_EQ(two[0].name, "a \"dog\", small");
  EXPECT_NEAR(two[0].probability, 0.665241, 1e-6);
  EXPECT_EQ(two[1].name, "2") << "a class without a name";
  EXPECT_EQ(most_probable(scores, {}, 9).size(), 3u);
  EXPECT_EQ(to_csv({"folder/x,1.png"}, {two}),
            "file,class,probability,class_2,probability_2\n"
            "\"x,1.png\",\"a \"\"dog\"\", small\",0.665241,2,0.244728\n");
}

class Predict : public Training {
 protected:
  static std::vector<std::vector<std::string>> rows(const fs::path& table) {
    std::vector<std::vector<std::string>> rows;
    for (const std::string& line : split(trim(read_file(table)), '\n'))
      rows.push_back(split(line, ','));
    return rows;
  }
  // Writes the fixture's test digits as PNG files, white on black: "00.png", ...
  static std::vector<std::uint8_t> write_digits(const fs::path& folder) {
    const data::MnistArrays digits = data::read_mnist(base_ / "mnist", data::MnistPart::Test);
    fs::create_directories(folder);
    for (std::int64_t i = 0; i < digits.images.count; ++i) {
      data::Image image = data::Image::blank(28, 28, 1);
      std::copy_n(digits.images.pixels.begin() + i * 784, 784, image.pixels.begin());
      data::write_png(folder / text(i / 10, i % 10, ".png"), image);
    }
    return digits.labels;
  }
};

// Predicts the validation digits from image files with the validation's accuracy.
TEST_F(Predict, EqualsValidationOnDigits) {
  recipe::Recipe wanted = recipe();
  wanted.train.epochs = 8;
  const TrainResult trained = train(wanted, hooks());
  const std::vector<std::uint8_t> labels = write_digits(base_ / "digits");
  write_file(base_ / "digits/broken.png", "not a picture");
  std::int64_t told = 0;
  PredictOptions options{
      .run = trained.run_folder, .images = base_ / "digits", .out = base_ / "table", .top_k = 3};
  options.models = hooks().models;
  options.progress = [&](std::int64_t done, std::int64_t all) {
    EXPECT_EQ(done, ++told);
    EXPECT_EQ(all, 21);
  };
  const PredictResult result = predict(options);
  EXPECT_EQ(told, 21);
  EXPECT_THAT(result.problems, ElementsAre(HasSubstr("broken.png")));
  ASSERT_EQ(result.classes.size(), 20u);
  std::size_t right = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) right += result.classes[i][0].id == labels[i];
  EXPECT_DOUBLE_EQ(static_cast<double>(right) / 20, *trained.best_metric);

  EXPECT_EQ(result.table, base_ / "table/predictions.csv");
  const auto table = rows(result.table);
  ASSERT_EQ(table.size(), 21u);
  EXPECT_THAT(table[0], ElementsAre("file", "class", "probability", "class_2", "probability_2",
                                    "class_3", "probability_3"));
  EXPECT_EQ(table[1][0], "00.png");
  EXPECT_EQ(table[1][1], text(result.classes[0][0].id)) << "a digit's name is its number";
  EXPECT_GE(std::stod(table[1][2]), std::stod(table[1][4]));
  std::string first = to_json(result);
  const auto json = nlohmann::json::parse(first.substr(0, first.find('\n')));
  EXPECT_EQ(json["file"], (base_ / "digits/00.png").string());
  EXPECT_EQ(json["class_id"], result.classes[0][0].id);
  EXPECT_EQ(json["top"].size(), 3u);
  EXPECT_THAT(first, HasSubstr("{\"problem\":"));
}

TEST_F(Predict, NamesClassesAfterTheirFolders) {
  for (const auto& [name, grey] : {std::pair{"ash, young", 30}, std::pair{"beech", 220}}) {
    fs::create_directories(base_ / "trees" / name);
    for (int i = 0; i < 10; ++i) {
      data::Image image = data::Image::blank(40, 30, 3);
      std::ranges::fill(image.pixels, static_cast<std::uint8_t>(grey + i));
      data::write_png(base_ / "trees" / name / text(i, ".png"), image);
    }
  }
  recipe::Recipe wanted = recipe();
  wanted.data.name = "classification";
  wanted.data.folder = (base_ / "trees").string();
  wanted.data.image_width = wanted.data.image_height = 28;
  wanted.model.channels = 1;
  wanted.train.batch = 4;
  wanted.train.epochs = 4;
  PredictOptions options{
      .run = train(wanted, hooks()).run_folder, .images = base_ / "new", .out = base_ / "out"};
  options.models = hooks().models;
  fs::create_directories(base_ / "new");
  fs::copy_file(base_ / "trees/ash, young/3.png", base_ / "new/a.png");
  fs::copy_file(base_ / "trees/beech/3.png", base_ / "new/b.png");
  fs::remove_all(base_ / "trees");  // the run stores the names
  EXPECT_EQ(predict(options).classes.size(), 2u);
  const std::string table = read_file(base_ / "out/predictions.csv");
  EXPECT_THAT(table, AllOf(HasSubstr("a.png,\"ash, young\",0."), HasSubstr("b.png,beech,0.")));
  options.checkpoint = Checkpoint::Last;
  const auto refused = [&]() -> std::string {
    try {
      predict(options);
    } catch (const UsageError& error) {
      return error.what();
    }
    return "nothing was thrown";
  };
  EXPECT_THAT(refused(),
              AllOf(HasSubstr("out/predictions.csv: exists already"), HasSubstr("--overwrite")));
  EXPECT_EQ(read_file(base_ / "out/predictions.csv"), table);
  options.overwrite = Overwrite::Allow;
  EXPECT_EQ(predict(options).classes.size(), 2u);
  for (const fs::path& images : {base_ / "new", base_ / "new/a.png"}) {
    options.images = images;
    options.out = base_ / "new/";
    EXPECT_THAT(refused(), HasSubstr("is the folder of the images"));
  }
  options.top_k = 0;
  EXPECT_THROW(predict(options), UsageError);
}

TEST_F(Predict, ListsProblemsWithoutTableWhenNoImageIsReadable) {
  PredictOptions options{.run = train(recipe(), hooks()).run_folder,
                         .images = base_ / "words",
                         .out = base_ / "no_table"};
  options.models = hooks().models;
  fs::create_directories(base_ / "words");
  write_file(base_ / "words/a.png", "words");
  const PredictResult result = predict(options);
  EXPECT_THAT(result.problems, ElementsAre(HasSubstr("words/a.png")));
  EXPECT_TRUE(result.table.empty());
  EXPECT_FALSE(fs::exists(base_ / "no_table/predictions.csv"));
}

TEST_F(Predict, RefusesWeightsThatAreNaN) {
  const TrainResult trained = train(recipe(), hooks(3));
  const fs::path file = trained.run_folder / "mine.safetensors";
  checkpoint::TensorFile weights = checkpoint::read_weights(trained.run_folder / "last");
  for (auto& [name, tensor] : weights.tensors)
    if (name == "out.bias") tensor = at::full_like(tensor, NAN);
  checkpoint::write_weights(file, weights.tensors, weights.metadata);
  write_digits(base_ / "some");
  PredictOptions options{.run = file, .images = base_ / "some", .out = base_ / "nan"};
  options.models = hooks().models;
  try {
    predict(options);
    FAIL() << "was accepted";
  } catch (const FormatError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("mine.safetensors: the weight 'out.bias'"),
                                    HasSubstr("infinite or NaN")));
  }
  EXPECT_FALSE(fs::exists(base_ / "nan"));
}

TEST_F(Predict, RefusesRunWithoutImageData) {
  recipe::Recipe wanted = recipe();
  wanted.data = {};
  wanted.data.name = "random";
  wanted.data.shape = {1, 28, 28};
  wanted.data.count = 24;
  wanted.model.classes = 10;
  PredictOptions options{
      .run = train(wanted, hooks()).run_folder, .images = base_, .out = base_ / "none"};
  options.models = hooks().models;
  try {
    predict(options);
    FAIL() << "was accepted";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(),
                HasSubstr("this run was trained on 'random', which are not image files"));
  }
}

}  // namespace
}  // namespace trestle::train
