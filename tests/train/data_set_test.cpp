#include "trestle/train/data_sets/data_set.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <iostream>

#include "tests/support/message_of.h"
#include "tests/train/training.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/data/files/image_file.h"
#include "trestle/data/synthetic/synthesize.h"
#include "trestle/recipe/recipe_fields.h"
#include "trestle/train/data_sets/find_data.h"
#include "trestle/train/example_check.h"
#include "trestle/train/field_help.h"
#include "trestle/train/progress/progress.h"
#include "trestle/train/without_effect.h"

namespace trestle::train {
namespace {

namespace fs = std::filesystem;
using support::message_of;
using ::testing::AllOf;
using ::testing::HasSubstr;

// A recipe with paths in a folder of the test.
recipe::Recipe recipe_of_set(const DataSet& set, const fs::path& folder) {
  recipe::Recipe recipe;
  recipe.data.name = set.name;
  recipe.data.images = (folder / "train_hq").string();
  recipe.data.masks = (folder / "train_masks").string();
  recipe.data.folder = (folder / "digits").string();
  recipe.data.input_array = (folder / "x.npy").string();
  recipe.data.target_array = (folder / "y.npy").string();
  recipe.data.tokens = (folder / "tokens").string();
  recipe.data.synthesize = 16;
  recipe.data.synthesize_width = 48;
  recipe.data.synthesize_height = 32;
  recipe.data.synthesize_depth = 8;
  recipe.data.patch = {8, 16, 16};
  if (set.name == "volumes") recipe.model.classes = 3;
  return recipe;
}

// Checks what the table promises of every entry, so that a new entry is tested automatically.
TEST(DataSets, EachSynthesizesChecksAndOpensItsFiles) {
  const auto silent = make_progress(ProgressStyle::Silent, Colours::Off, std::cout);
  for (const DataSet& set : data_sets()) {
    if (!set.stand_in) continue;
    SCOPED_TRACE(set.name);
    if (set.paths.empty()) continue;
    const fs::path folder = fs::temp_directory_path() / text("trestle_", set.name, "_", getpid());
    fs::remove_all(folder);
    fs::create_directories(folder);
    recipe::Recipe recipe = recipe_of_set(set, folder);
    EXPECT_FALSE(set.check(recipe, {}).ok()) << "no data exist yet";
    const recipe::Recipe asked = recipe;
    recipe.data = find_data(asked, *silent);
    EXPECT_FALSE(set.check(asked, {}).ok()) << "the folder for real data stays missing";
    EXPECT_EQ(find_data(recipe, *silent), recipe.data)
        << "synthetic data are not replaced by others";
    EXPECT_FALSE(synthetic_data_of(asked));
    EXPECT_TRUE(synthetic_data_of(recipe));
    const data::CheckReport report = set.check(recipe, {});
    EXPECT_THAT(report.problems, ::testing::IsEmpty());
    EXPECT_GE(report.count, 16);
    const OpenedData opened = set.open(recipe);
    EXPECT_FALSE(opened.training.indices.empty());
    EXPECT_FALSE(opened.validation.indices.empty());
    const data::Sample sample = opened.training.dataset->get(opened.training.indices[0]);
    EXPECT_EQ(sample.target.dim(), set.predicts == Predicts::Mask ? sample.input.dim() - 1 : 0);
    Synthesis wanted{.out = folder / "more", .count = 16};
    if (set.predicts == Predicts::Class) {
      wanted.width = 48;
      EXPECT_THROW(set.synthesize(wanted), UsageError) << "digits have one size";
      wanted.width = 0;
    } else {
      wanted.width = 48;
      wanted.height = 32;
    }
    EXPECT_THAT(set.synthesize(wanted), HasSubstr("more"));
    fs::remove_all(folder);
  }
}

TEST(DataSets, PreferRealDataOverSyntheticData) {
  const auto silent = make_progress(ProgressStyle::Silent, Colours::Off, std::cout);
  const fs::path folder = fs::temp_directory_path() / text("trestle_real_", getpid());
  fs::remove_all(folder);
  const recipe::Recipe recipe = recipe_of_set(find_data_set("mnist"), folder);
  EXPECT_EQ(find_data(recipe, *silent).folder, (folder / "digits-synthetic").string());
  EXPECT_EQ(find_data(recipe, *silent).folder, (folder / "digits-synthetic").string());
  recipe::Recipe other = recipe;
  other.data.synthesize = 17;
  EXPECT_THAT(message_of<UsageError>([&] { find_data(other, *silent); }),
              AllOf(HasSubstr("17 digits to train on"),
                    HasSubstr("other synthetic data: 16 digits"), HasSubstr("Remove the folder")));
  other.data.synthesize = 0;
  EXPECT_EQ(find_data(other, *silent).folder, recipe.data.folder)
      << "synthetic data were not requested";
  fs::create_directories(folder / "digits");
  EXPECT_EQ(find_data(recipe, *silent).folder, recipe.data.folder);
  fs::remove_all(folder);
}

// A folder with images and masks of two classes, black and red, in two sizes.
struct OwnImages {
  OwnImages() {
    fs::remove_all(folder);
    for (const char* name : {"photos", "masks"}) fs::create_directories(folder / name);
    for (int i = 0; i < 10; ++i) {
      data::Image mask = data::Image::blank(i == 7 ? 10 : 8, 6, 3);
      mask.at(i % 8, 2, 0) = 255;
      data::write_jpeg(folder / text("photos/", i, ".jpg"), data::Image::blank(mask.width, 6, 3));
      data::write_png(folder / text("masks/", i, "-seg.png"), mask);
    }
    recipe.data.name = "segmentation";
    recipe.data.images = (folder / "photos").string();
    recipe.data.masks = (folder / "masks").string();
    recipe.data.mask_suffix = "-seg";
    recipe.data.image_width = 8;
    recipe.data.image_height = 6;
  }
  ~OwnImages() { fs::remove_all(folder); }

  fs::path folder = fs::temp_directory_path() / text("trestle_own_", getpid());
  recipe::Recipe recipe;
};

TEST(Segmentation, FindsClassesOnceAndStoresThem) {
  OwnImages own;
  Notes notes;
  own.recipe.data = find_data(own.recipe, notes);
  EXPECT_THAT(own.recipe.data.mask_values, ::testing::ElementsAre("0", "#ff0000"));
  EXPECT_THAT(notes.lines,
              HasSubstr("classes   0 = 0 (98.0 % of all pixels), 1 = #ff0000 (2.0 %)"));
  const OpenedData opened = find_data_set("segmentation").open(own.recipe);
  EXPECT_EQ(opened.classes, 2);
  EXPECT_EQ(opened.training.indices.size(), 8u);
  EXPECT_EQ(opened.training.dataset->get(3).target.sum().item<std::int64_t>(), 1);
  // With a given table of classes, masks are not read.
  data::write_png(own.folder / "masks/5-seg.png", data::Image::blank(8, 6, 1));
  fs::resize_file(own.folder / "masks/4-seg.png", 3);
  EXPECT_EQ(find_data(own.recipe, notes), own.recipe.data);
}

TEST(Segmentation, CheckListsClassesAndProblems) {
  OwnImages own;
  data::CheckReport report = check_data(own.recipe, {});
  EXPECT_THAT(report.problems, ::testing::IsEmpty());
  EXPECT_EQ(report.count, 10);
  EXPECT_THAT(report.notes, ::testing::ElementsAre(HasSubstr("classes: 0 = 0 (")));
  own.recipe.data.image_width = own.recipe.data.image_height = 0;
  fs::resize_file(own.folder / "masks/4-seg.png", 3);
  fs::remove(own.folder / "masks/5-seg.png");
  report = check_data(own.recipe, {});
  EXPECT_EQ(report.count, 8);
  EXPECT_THAT(report.problems, ::testing::UnorderedElementsAre(
                                   HasSubstr("4-seg.png"),
                                   HasSubstr("no mask for " + own.recipe.data.images + "/5.jpg"),
                                   HasSubstr("1 of 10 x 6 x 3 (7)")));
  own.recipe.model.classes = 5;
  EXPECT_THAT(check_data(own.recipe, {}).problems,
              ::testing::Contains(HasSubstr("which do not fit 5 classes")));
}

// Regression: one wrong value hid an empty file and a mask of another size.
TEST(Segmentation, CheckListsProblemsBehindAWrongMaskValue) {
  OwnImages own;
  data::Image odd = data::Image::blank(8, 6, 3);
  odd.at(1, 1, 1) = 128;
  data::write_png(own.folder / "masks/3-seg.png", odd);
  write_file(own.folder / "photos/4.jpg", "");
  data::write_png(own.folder / "masks/5-seg.png", data::Image::blank(9, 6, 1));
  write_file(own.folder / "photos/Thumbs.db", "windows");
  const data::CheckReport report = check_data(own.recipe, {});
  EXPECT_THAT(report.problems,
              ::testing::UnorderedElementsAre(
                  AllOf(HasSubstr("which do not fit 2 classes"),
                        HasSubstr("#008000 is in 1 of 10 masks: "), HasSubstr("masks/3-seg.png")),
                  HasSubstr("photos/4.jpg: the file is empty"),
                  AllOf(HasSubstr("masks/5-seg.png"), HasSubstr("the mask has 9 x 6 pixels"))));
  EXPECT_EQ(report.count, 8);
  EXPECT_THAT(report.notes, ::testing::Contains(HasSubstr("photos/Thumbs.db")));
}

TEST(Classification, CheckListsProblemsBehindAnEmptyClass) {
  const fs::path folder = fs::temp_directory_path() / text("trestle_class_check_", getpid());
  fs::remove_all(folder);
  for (const char* name : {"ash", "beech", "cedar"}) fs::create_directories(folder / name);
  for (const char* name : {"ash/1.png", "cedar/1.png", "cedar/2.png"})
    data::write_png(folder / name, data::Image::blank(4, 4, 1));
  write_file(folder / "cedar/3.webp", "RIFF0000WEBPVP8 ");
  write_file(folder / "cedar/Thumbs.db", "windows");
  recipe::Recipe recipe;
  recipe.data.name = "classification";
  recipe.data.folder = folder.string();
  const data::CheckReport report = check_data(recipe, {});
  EXPECT_THAT(report.problems, ::testing::ElementsAre(HasSubstr("beech: the class has no images"),
                                                      HasSubstr("3.webp: a WebP picture")));
  EXPECT_EQ(report.count, 3);
  EXPECT_THAT(report.notes, ::testing::Contains(HasSubstr("cedar/Thumbs.db")));
  fs::remove_all(folder);
}

// The check agrees with what a training refuses.
TEST(DataSets, CheckRunsTheRecipesModelAndLossOnAnExample) {
  recipe::Recipe recipe;
  recipe.data.name = "arrays";
  recipe.data.input_array = TRESTLE_SOURCE_DIR "/tests/golden/npy/packed.npz:x";  // [40, 50]
  recipe.data.target_array = TRESTLE_SOURCE_DIR "/tests/golden/npy/packed.npz:y";
  recipe.model.name = "mlp";
  recipe.model.channels = 50;
  recipe.model.classes = 40;
  EXPECT_EQ(problem_of_model(recipe), "");
  recipe.model.channels = 20;
  EXPECT_THAT(problem_of_model(recipe), HasSubstr("Set channels = 50 in [model]"));
  recipe.model.channels = 50;
  recipe.model.classes = 3;
  EXPECT_THAT(problem_of_model(recipe), HasSubstr("'classes' in [model] is 3"));
  recipe.model.classes = 40;
  recipe.train.loss = "mean_squared_error";
  EXPECT_THAT(problem_of_model(recipe), HasSubstr("For class ids use cross_entropy"));
  recipe.train.loss = "";
  recipe.data.target_array = recipe.data.input_array;
  EXPECT_THAT(problem_of_model(recipe), AllOf(HasSubstr("int64 class ids"), HasSubstr("Float"),
                                              HasSubstr("mean_squared_error")));
  OwnImages own;
  own.recipe.train.batch = 4;
  own.recipe.model.name = "unet";
  own.recipe.model.width = 2;
  own.recipe.data.image_width = own.recipe.data.image_height = 256;  // a small one stands for it
  EXPECT_EQ(problem_of_model(own.recipe), "");
  own.recipe.model.name = "resnet18";
  own.recipe.model.channels = 1;
  own.recipe.data.image_width = own.recipe.data.image_height = 28;
  EXPECT_THAT(problem_of_model(own.recipe), HasSubstr("The model gives scores for each sample"));
}

std::string refusal(recipe::Recipe recipe, const std::string& field, const std::string& value) {
  recipe::set_field(recipe, field, value);
  return message_of<UsageError>([&] { refuse_without_effect({recipe}, {field}); });
}

TEST(WithoutEffect, KeysThatTheRunDoesNotReadAreRefused) {
  recipe::Recipe recipe;
  recipe.data.name = "carvana";
  recipe.optimizer.name = "adam";
  EXPECT_THAT(refusal(recipe, "data.folder", "x"),
              HasSubstr("'folder' in [data] has no effect for 'carvana'"));
  EXPECT_THAT(refusal(recipe, "optimizer.momentum", "0.9"),
              HasSubstr("'momentum' in [optimizer] has no effect for the optimizer 'adam'"));
  EXPECT_THAT(refusal(recipe, "optimizer.milestones", "3,6"),
              HasSubstr("has no effect for the learning-rate schedule 'constant'"));
  EXPECT_THAT(refusal(recipe, "optimizer.warm_up_from", "0.5"), HasSubstr("without 'warm_up'"));
  EXPECT_THAT(refusal(recipe, "optimizer.plateau_factor", "0.5"), HasSubstr("without 'plateau'"));
  EXPECT_THAT(refusal(recipe, "data.synthesize_width", "48"), HasSubstr("without 'synthesize'"));
  recipe.data.synthesize = 4;
  EXPECT_THAT(refusal(recipe, "data.shape", "3,64,64"),
              AllOf(HasSubstr("'shape' in [data] has no effect"), HasSubstr("'synthesize_width'")));
  const std::string accepted = "nothing was thrown";
  EXPECT_EQ(refusal(recipe, "data.synthesize_width", "48"), accepted);
  EXPECT_EQ(refusal(recipe, "data.validation", "0.5"), accepted);
  EXPECT_EQ(refusal(recipe, "optimizer.momentum", "0"), accepted) << "it sets nothing";
  EXPECT_EQ(refusal(recipe, "optimizer.beta1", "0.8"), accepted);
  EXPECT_EQ(refusal(recipe, "train.batch", "3"), accepted);
  recipe.optimizer.learning_rate_schedule = "multi_step";
  EXPECT_EQ(refusal(recipe, "optimizer.milestones", "3,6"), accepted);
}

TEST(WithoutEffect, SweptKeysNeedOnePointThatReadsThem) {
  recipe::Recipe adam, sgd;
  adam.data.name = sgd.data.name = "random";
  adam.optimizer.name = "adam", sgd.optimizer.name = "sgd";
  adam.optimizer.momentum = sgd.optimizer.momentum = 0.9;
  EXPECT_NO_THROW(refuse_without_effect({adam, sgd}, {"optimizer.momentum"}));
  EXPECT_THROW(refuse_without_effect({adam, adam}, {"optimizer.momentum"}), UsageError);
  EXPECT_THAT(notes_without_effect(adam, {}),
              ::testing::ElementsAre(HasSubstr("note      'momentum' in [optimizer] has no")));
  EXPECT_THAT(notes_without_effect(adam, {"momentum"}), ::testing::IsEmpty());
  EXPECT_THAT(notes_without_effect(sgd, {}), ::testing::IsEmpty());
}

// The recipes that ship have no such keys.
TEST(WithoutEffect, EveryKeyOfTheRecipesIsRead) {
  for (const auto& entry : fs::directory_iterator(TRESTLE_SOURCE_DIR "/recipes")) {
    if (entry.path().extension() != ".toml") continue;
    EXPECT_THAT(notes_without_effect(recipe::read_recipe(entry.path()), {}), ::testing::IsEmpty())
        << entry.path();
  }
}

TEST(Classification, DoesNotTakeSplitFoldersForClasses) {
  const fs::path folder = fs::temp_directory_path() / text("trestle_classes_", getpid());
  fs::remove_all(folder);
  recipe::Recipe recipe;
  recipe.data.name = "classification";
  recipe.data.folder = folder.string();
  recipe.data.validation = 0.5;
  for (const char* name : {"cats/1", "cats/2", "dogs/1", "dogs/2"}) {
    const fs::path file = folder / (std::string(name) + ".png");
    fs::create_directories(file.parent_path());
    data::write_png(file, data::Image::blank(4, 4, 1));
  }
  Notes notes;
  find_data(recipe, notes);
  EXPECT_EQ(notes.lines, "classes   0 = cats (2), 1 = dogs (2)\n");
  OpenedData opened = find_data_set("classification").open(recipe);
  EXPECT_EQ(opened.classes, 2);
  EXPECT_EQ(opened.training.indices.size(), 2u);
  EXPECT_EQ(opened.validation.indices.size(), 2u);
  for (const char* part : {"train", "val"}) {
    fs::create_directories(folder / part);
    for (const char* name : {"cats", "dogs"}) fs::copy(folder / name, folder / part / name);
  }
  fs::remove(folder / "val/dogs/1.png");
  opened = find_data_set("classification").open(recipe);
  EXPECT_EQ(opened.training.indices.size(), 4u);
  EXPECT_EQ(opened.validation.indices.size(), 3u);
  EXPECT_THAT(check_data(recipe, {}).problems, ::testing::IsEmpty());
  EXPECT_EQ(check_data(recipe, {}).count, 7);
  fs::remove_all(folder);
}

TEST(Arrays, AreSplitAndChecked) {
  recipe::Recipe recipe;
  recipe.data.name = "arrays";
  recipe.data.input_array = TRESTLE_SOURCE_DIR "/tests/golden/npy/packed.npz:x";
  recipe.data.target_array = TRESTLE_SOURCE_DIR "/tests/golden/npy/packed.npz:y";
  const OpenedData opened = find_data_set("arrays").open(recipe);
  EXPECT_EQ(opened.classes, 40);
  EXPECT_EQ(opened.training.indices.size(), 32u);
  EXPECT_EQ(opened.validation.indices.size(), 8u);
  const data::CheckReport report = check_data(recipe, {});
  EXPECT_EQ(report.count, 40);
  EXPECT_THAT(report.problems, ::testing::IsEmpty());
  EXPECT_THAT(report.sizes, ::testing::ElementsAre(::testing::Pair("50", 40)));
  recipe.data.target_array = TRESTLE_SOURCE_DIR "/tests/golden/npy/set.npz:y";
  EXPECT_THAT(check_data(recipe, {}).problems,
              ::testing::ElementsAre(HasSubstr("2 targets, but 40 examples")));
}

TEST(DataSets, FashionMnistUsesMnistFormatInItsOwnFolder) {
  const fs::path folder = fs::temp_directory_path() / text("trestle_fashion_", getpid());
  fs::remove_all(folder);
  data::synthesize_mnist(folder, 20);
  recipe::Recipe recipe;
  recipe.data.name = "fashion_mnist";
  recipe.data.folder = folder.string();
  EXPECT_EQ(check_data(recipe, {}).count, 23);
  EXPECT_EQ(find_data_set("fashion_mnist").open(recipe).classes, 10);
  recipe.data.synthesize = 20;
  recipe.data.folder = (folder / "none").string();
  Notes notes;
  EXPECT_THAT(message_of<UsageError>([&] { find_data(recipe, notes); }),
              HasSubstr("no synthetic examples of 'fashion_mnist'"));
  fs::remove_all(folder);
}

TEST(DataSets, RandomTensorsNeedNoFiles) {
  recipe::Recipe recipe;
  recipe.data.name = "random";
  EXPECT_THAT(problems_of_data(recipe), ::testing::IsEmpty());
  const DataSet set = find_data_set("random");
  EXPECT_EQ(message_of<UsageError>([&] { set.open(recipe); }),
            "random needs 'shape' in [data] and 'count' in [data] and 'classes' in [model]");
  recipe.data.shape = {3, 4, 4};
  recipe.data.count = 6;
  recipe.model.classes = 5;
  const OpenedData opened = set.open(recipe);
  EXPECT_EQ(opened.training.indices.size(), 6u);
  EXPECT_TRUE(opened.validation.indices.empty());
  EXPECT_EQ(opened.training.dataset->get(5).target.sizes(), at::IntArrayRef({5}));
  EXPECT_FALSE(set.synthesize);
}

TEST(DataSets, SuggestNearestNameForUnknownOne) {
  EXPECT_EQ(find_data_set("mnist").name, "mnist");
  EXPECT_THAT(message_of<UsageError>([] { find_data_set("carvna"); }),
              AllOf(HasSubstr("unknown data set 'carvna'; did you mean 'carvana'?"),
                    HasSubstr(data_set_names())));
}

TEST(DataSets, NameMissingPathsOfRecipe) {
  recipe::Recipe recipe;
  EXPECT_THAT(problems_of_data(recipe), ::testing::ElementsAre(HasSubstr("no data")));
  for (const DataSet& set : data_sets()) {
    recipe.data.name = set.name;
    if (!set.usual_place.empty()) {
      EXPECT_EQ(data_paths(set, recipe), std::vector<fs::path>{set.usual_place});
      continue;
    }
    if (set.paths.empty()) continue;
    ASSERT_EQ(problems_of_data(recipe).size(), 1u);
    for (const std::string& path : set.paths)
      EXPECT_THAT(problems_of_data(recipe)[0], HasSubstr("'" + path + "'"));
    EXPECT_THAT(problems_of_data(recipe_of_set(set, "somewhere")), ::testing::IsEmpty());
  }
}

TEST(FieldHelp, ListsNamesOfTables) {
  for (const DataSet& set : data_sets()) {
    EXPECT_THAT(help_of(*recipe::find_field("data.name")), HasSubstr(set.name));
    EXPECT_THAT(help_of(*recipe::find_field("train.loss")),
                HasSubstr(set.loss + " for " + set.name));
  }
  EXPECT_THAT(help_of(*recipe::find_field("pipeline.schedule")),
              HasSubstr("1f1b, dualpipev, gpipe"));
  EXPECT_THAT(help_of(*recipe::find_field("model.name")), HasSubstr("resnet18_flat"));
  EXPECT_THAT(help_of(*recipe::find_field("optimizer.name")), HasSubstr("adamw"));
  EXPECT_EQ(help_of(*recipe::find_field("train.epochs")), recipe::find_field("train.epochs")->help);
}

}  // namespace
}  // namespace trestle::train
