#include "trestle/recipe/recipe.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/fuzz/fuzz.h"
#include "tests/support/message_of.h"
#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/recipe/recipe_fields.h"

namespace trestle::recipe {
namespace {

using support::message_of;
using testing::HasSubstr;
using testing::Not;

const char* const small = R"(# a comment
[model]
name = "unet"

[data]
name = "carvana"
images = "a"
masks = "b"

[pipeline]
balance = [13, 9]
micro_batches = 4
recompute = "except_last"

[optimizer]
learning_rate = 1
)";

std::string reading(const std::string& toml) {
  return message_of([&] { parse_recipe(toml, "recipes/my.toml"); });
}

TEST(Recipe, ReadsKeysAndKeepsDefaultsForTheRest) {
  const Recipe recipe = parse_recipe(small, "recipes/my.toml");
  EXPECT_EQ(recipe.name, "my");
  EXPECT_EQ(recipe.model.name, "unet");
  EXPECT_THAT(recipe.pipeline.balance, testing::ElementsAre(13, 9));
  EXPECT_THAT(recipe.pipeline.recompute, testing::ElementsAre("except_last"));
  EXPECT_EQ(recipe.optimizer.learning_rate, 1.0);
  EXPECT_EQ(recipe.pipeline.schedule, "gpipe");
  EXPECT_EQ(recipe.train.seed, 42);
  EXPECT_NO_THROW(check_recipe(recipe));
}

TEST(Recipe, KnowsTheKeysOfOtherPrograms) {
  for (const char* key : {"batch_size", "batchsize", "BatchSize"})
    EXPECT_EQ(reading(std::string("[train]\n") + key + " = 4\n"),
              std::string("recipes/my.toml:2: unknown key '") + key +
                  "' in [train]; did you mean 'batch' in [train]?");
  EXPECT_THAT(reading("[train]\nlr = 0.1\n"), HasSubstr("'learning_rate' in [optimizer]?"));
  EXPECT_THAT(reading("batch_size = 4\n"), HasSubstr("did you mean 'batch' in [train]?"));
  Recipe recipe;
  EXPECT_THAT(message_of([&] { set_field(recipe, "train.batch_size", "4"); }),
              HasSubstr("did you mean 'train.batch'?"));
  for (const Field& field : recipe_fields())
    EXPECT_EQ(find_field_of_other_programs(field.name()), nullptr) << field.name();
}

TEST(Recipe, UnquotedTextsGetTheirQuotesInTheHint) {
  EXPECT_THAT(reading("[model]\nname = unet  # a net\n"),
              testing::AllOf(HasSubstr("recipes/my.toml:2: "),
                             HasSubstr("A text needs quotes: name = \"unet\"")));
  EXPECT_THAT(reading("[data]\nimages = data/cars\n"), HasSubstr("images = \"data/cars\""));
  EXPECT_THAT(reading("[data]\nimages = /data/cars\n"), HasSubstr("images = \"/data/cars\""));
  EXPECT_THAT(reading("[train]\npictures = True\n"), HasSubstr("TOML writes pictures = true."));
  EXPECT_THAT(reading("[train]\nbatch = 4 4\n"), Not(HasSubstr("quotes")));
}

TEST(Recipe, ListOfOneTextNamesTheTextToWrite) {
  EXPECT_EQ(reading("[devices]\nuse = [\"cpu\"]\n"),
            "recipes/my.toml:2: 'use' in [devices] must be text, not [\"cpu\"]: write use = "
            "\"cpu\"");
  EXPECT_THAT(reading("[devices]\nuse = [\"cuda:0\", \"cuda:1\"]\n"),
              HasSubstr(": write use = \"cuda:0,cuda:1\""));
  EXPECT_THAT(reading("[model]\nname = [\"a\", \"b\"]\n"), Not(HasSubstr("write")));
}

TEST(Recipe, SuggestsTheNearestKeyWithFileAndLine) {
  EXPECT_EQ(
      reading("[pipeline]\n\nmicro_batch = 4\n"),
      "recipes/my.toml:3: unknown key 'micro_batch' in [pipeline]; did you mean 'micro_batches'?");
  EXPECT_EQ(reading("[pipelne]\nbalance = [1]\n"),
            "recipes/my.toml:1: unknown section [pipelne]; did you mean 'pipeline'?");
  EXPECT_EQ(reading("[train]\nlearning_rate = 0.1\n"),
            "recipes/my.toml:2: unknown key 'learning_rate' in [train]; did you mean [optimizer]?");
  EXPECT_THAT(reading("epochs = 3\n"), HasSubstr("outside of any section; did you mean [train]?"));
  EXPECT_THAT(reading("[train]\nxyzzy = 3\n"), HasSubstr("known are epochs, max_steps, batch"));
}

TEST(Recipe, RejectsBothNumberAndSizeOfMicroBatches) {
  Recipe recipe = parse_recipe(small, "recipes/my.toml");
  set_field(recipe, "split_size", "20");
  EXPECT_THAT(message_of([&] { check_recipe(recipe); }),
              HasSubstr("'micro_batches' = 4 and 'split_size' = 20 in [pipeline] are both given"));
  set_field(recipe, "micro_batches", "1");
  EXPECT_NO_THROW(check_recipe(recipe));
  EXPECT_EQ(parse_recipe(to_toml(recipe), "again.toml").pipeline.split_size, 20);
}

TEST(Recipe, ReportsTypesRangesAndChoices) {
  EXPECT_EQ(
      reading("[train]\nepochs = 0\n"),
      "recipes/my.toml:2: 'epochs' in [train] must be an integer from 1 to 1000000000, not 0");
  EXPECT_EQ(
      reading("[train]\nepochs = 1.5\n"),
      "recipes/my.toml:2: 'epochs' in [train] must be an integer from 1 to 1000000000, not 1.5");
  EXPECT_THAT(reading("[train]\nepochs = \"x\"\n"), HasSubstr("not \"x\""));
  EXPECT_THAT(reading("[train]\nepochs = 2020-01-01\n"), HasSubstr("not a date or time"));
  EXPECT_THAT(reading("[pipeline]\nrecompute = \"exept_last\"\n"),
              HasSubstr("did you mean 'except_last'?"));
  EXPECT_THAT(reading("[data]\nscale = 1.5\n"), HasSubstr("not 1.5"));
  EXPECT_THAT(reading("[data]\nscale = nan\n"), HasSubstr("not nan"));
  EXPECT_THAT(reading("[pipeline]\nbalance = [1, \"x\"]\n"),
              HasSubstr("a list of integers from 1 to 1000000000"));
  EXPECT_THAT(reading("train = 4\n"), HasSubstr("write [train]"));
}

TEST(Recipe, ListsAllProblemsInTheOrderOfTheFile) {
  const std::string message = reading("[train]\nepoch = 1\nbatch = 0\n[zzz]\n");
  EXPECT_THAT(
      message,
      HasSubstr("recipes/my.toml:2: unknown key 'epoch' in [train]; did you mean 'epochs'?\n"));
  EXPECT_THAT(message, HasSubstr("\nrecipes/my.toml:3: 'batch'"));
  EXPECT_THAT(message, HasSubstr("\nrecipes/my.toml:4: unknown section"));
}

TEST(Recipe, ReportsTheLineOfInvalidToml) {
  EXPECT_THROW(parse_recipe("[train\n", "my.toml"), UsageError);
  EXPECT_THAT(reading("[train]\nepochs = = 2\n"), HasSubstr("recipes/my.toml:2: "));
  EXPECT_THROW(read_recipe("no/such.toml"), UsageError);
}

TEST(Recipe, SurvivesARoundTripThroughToml) {
  Recipe recipe = parse_recipe(small, "my.toml");
  recipe.optimizer.learning_rate = 0.1 + 0.2;
  recipe.data.folder = "a \"quoted\"\\\n\x01 path";
  recipe.pipeline.recompute = {"always", "never"};
  recipe.data.split_seed = 9'000'000'000'000'000'000;
  const Recipe back = parse_recipe(to_toml(recipe), "my.toml");
  for (const Field& field : recipe_fields())
    EXPECT_EQ(field.get(back), field.get(recipe)) << field.name();
}

// The run's recipe.toml could not be read back by --resume or predict.
TEST(Recipe, RejectsTextThatIsNotUtf8) {
  Recipe recipe = parse_recipe(small, "my.toml");
  for (const auto& [field, value] : std::vector<std::pair<std::string, std::string>>{
           {"data.images", "b\xe4r"}, {"optimizer.frozen", "in,\xff"}, {"train.runs", "\xc3"}}) {
    try {
      set_field(recipe, field, value);
      ADD_FAILURE() << field << " was accepted";
    } catch (const UsageError& error) {
      EXPECT_THAT(error.what(), HasSubstr("is not UTF-8"));
    }
  }
  set_field(recipe, "data.images", "b\xc3\xa4r");
  EXPECT_EQ(parse_recipe(to_toml(recipe), "my.toml").data.images, "b\xc3\xa4r");
}

TEST(Recipe, NamesTheFoldersInWhichItLooksForAName) {
  std::string words;
  try {
    read_recipe("no_such_run");
  } catch (const UsageError& error) {
    words = error.what();
  }
  const auto here = std::filesystem::current_path();
  EXPECT_NE(words.find("no_such_run.toml in " + here.string() + ","), std::string::npos) << words;
  ASSERT_EQ(recipe_folders().size(), 3U);
  const std::filesystem::path program = std::filesystem::read_symlink("/proc/self/exe");
  const auto installed = program.parent_path().parent_path() / "share/trestle/recipes";
  EXPECT_EQ(recipe_folders()[2], installed);
  EXPECT_NE(words.find(", nor in " + installed.string()), std::string::npos) << words;
  EXPECT_NE(words.find(", nor in " + (here / "recipes").string()), std::string::npos) << words;
}

TEST(Recipe, FlagsSetEveryField) {
  Recipe recipe = parse_recipe(small, "my.toml");
  set_field(recipe, "train.epochs", "3");
  set_field(recipe, "balance", "[5, 9,8]");
  set_field(recipe, "pipeline.recompute", "always,never");
  set_field(recipe, "bilinear", "true");
  set_field(recipe, "learning_rate", "1e-4");
  EXPECT_EQ(recipe.train.epochs, 3);
  EXPECT_THAT(recipe.pipeline.balance, testing::ElementsAre(5, 9, 8));
  EXPECT_THAT(recipe.pipeline.recompute, testing::ElementsAre("always", "never"));
  EXPECT_TRUE(recipe.model.bilinear);
  EXPECT_EQ(recipe.optimizer.learning_rate, 1e-4);
  EXPECT_THAT(message_of([&] { set_field(recipe, "train.epochs", "three"); }),
              HasSubstr("an integer from 1 to 1000000000, not 'three'"));
  EXPECT_THAT(message_of([&] { set_field(recipe, "train.epoch", "3"); }),
              HasSubstr("did you mean 'train.epochs'?"));
  EXPECT_THROW(set_field(recipe, "name", "x"), UsageError) << "three sections have a name";
  for (const Field& field : recipe_fields()) {
    const std::string value = to_toml(field.get(recipe));
    if (field.type != FieldType::Text) {
      EXPECT_EQ(parse_value(field, value), field.get(recipe)) << field.name();
    }
    EXPECT_FALSE(field.help.empty());
  }
}

TEST(Recipe, ChecksFieldsAgainstEachOther) {
  EXPECT_THAT(message_of([] { check_recipe(Recipe{}, {"no data"}); }),
              testing::AllOf(HasSubstr("no model"), HasSubstr("no data")));
  Recipe recipe = parse_recipe(small, "my.toml");
  recipe.pipeline.recompute = {"always", "never", "never"};
  EXPECT_THAT(message_of([&] { check_recipe(recipe); }), HasSubstr("names 3 stages, 'balance' 2"));
}

TEST(Recipe, HashesOnlyFieldsThatMustNotChange) {
  const Recipe recipe = parse_recipe(small, "my.toml");
  Recipe longer = recipe;
  longer.train.epochs = 100;
  longer.train.runs = "elsewhere";
  longer.pipeline.balance = {1};
  longer.pipeline.micro_batches = 7;
  longer.optimizer.learning_rate = 7;
  EXPECT_EQ(recipe_hash(longer), recipe_hash(recipe));
  Recipe other = recipe;
  other.train.batch = 3;
  EXPECT_NE(recipe_hash(other), recipe_hash(recipe));
}

TEST(Recipe, ReadsAnyBytesOrThrowsTrestlesErrors) {
  const auto result = fuzz::run({small, to_toml(Recipe{})},
                                [](std::string_view bytes) {
                                  const Recipe recipe = parse_recipe(bytes, "fuzz.toml");
                                  parse_recipe(to_toml(recipe), "again.toml");
                                },
                                {.iterations = 3000});
  EXPECT_GT(result.accepted, 0);
  EXPECT_GT(result.refused, 0);
}

}  // namespace
}  // namespace trestle::recipe
