#include "trestle/train/data_set.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <iostream>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/train/field_help.h"
#include "trestle/train/progress.h"

namespace trestle::train {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

template <class Action>
std::string message_of(Action action) {
  try {
    action();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing was thrown";
}

// A recipe whose paths lie in a folder of the test.
recipe::Recipe recipe_of_set(const DataSet& set, const fs::path& folder) {
  recipe::Recipe recipe;
  recipe.data.name = set.name;
  recipe.data.images = (folder / "train_hq").string();
  recipe.data.masks = (folder / "train_masks").string();
  recipe.data.folder = (folder / "digits").string();
  recipe.data.synthesize = 16;
  recipe.data.synthesize_width = 48;
  recipe.data.synthesize_height = 32;
  return recipe;
}

// What the table promises of every entry: a new one is tested by being in it.
TEST(DataSets, EachMakesChecksAndOpensItsOwnFiles) {
  const auto silent = make_progress(ProgressStyle::Silent, Colours::Off, std::cout);
  for (const DataSet& set : data_sets()) {
    SCOPED_TRACE(set.name);
    const fs::path folder = fs::temp_directory_path() / text("trestle_", set.name, "_", getpid());
    fs::remove_all(folder);
    fs::create_directories(folder);
    const recipe::Recipe recipe = recipe_of_set(set, folder);
    EXPECT_FALSE(set.check(recipe, {}).ok()) << "nothing is there yet";
    set.synthesize_missing(recipe, *silent);
    const data::CheckReport report = set.check(recipe, {});
    EXPECT_THAT(report.problems, testing::IsEmpty());
    EXPECT_GE(report.count, 16);
    const OpenedData opened = set.open(recipe);
    EXPECT_FALSE(opened.training.indices.empty());
    EXPECT_FALSE(opened.validation.indices.empty());
    const data::Sample sample = opened.training.dataset->get(opened.training.indices[0]);
    EXPECT_EQ(sample.target.dim(), set.predicts == Predicts::Mask ? 2 : 0);
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

TEST(DataSets, AnUnknownNameGivesTheNearest) {
  EXPECT_EQ(find_data_set("mnist").name, "mnist");
  EXPECT_THAT(message_of([] { find_data_set("carvna"); }),
              AllOf(HasSubstr("unknown data set 'carvna'; did you mean 'carvana'?"),
                    HasSubstr(data_set_names())));
}

TEST(DataSets, ARecipeThatLeavesAPathOut) {
  recipe::Recipe recipe;
  EXPECT_THAT(problems_of_data(recipe), testing::ElementsAre(HasSubstr("no data")));
  for (const DataSet& set : data_sets()) {
    recipe.data.name = set.name;
    ASSERT_EQ(problems_of_data(recipe).size(), 1u);
    for (const std::string& path : set.paths)
      EXPECT_THAT(problems_of_data(recipe)[0], HasSubstr("'" + path + "'"));
    EXPECT_THAT(problems_of_data(recipe_of_set(set, "somewhere")), testing::IsEmpty());
  }
}

TEST(FieldHelp, NamesWhatTheTablesHave) {
  for (const DataSet& set : data_sets()) {
    EXPECT_THAT(help_of(*recipe::find_field("data.name")), HasSubstr(set.name));
    EXPECT_THAT(help_of(*recipe::find_field("train.loss")),
                HasSubstr(set.loss + " for " + set.name));
  }
  EXPECT_THAT(help_of(*recipe::find_field("pipeline.schedule")), HasSubstr("gpipe, 1f1b"));
  EXPECT_THAT(help_of(*recipe::find_field("model.name")), HasSubstr("resnet18_flat"));
  EXPECT_THAT(help_of(*recipe::find_field("optimizer.name")), HasSubstr("adamw"));
  EXPECT_EQ(help_of(*recipe::find_field("train.epochs")), recipe::find_field("train.epochs")->help);
}

}  // namespace
}  // namespace trestle::train
