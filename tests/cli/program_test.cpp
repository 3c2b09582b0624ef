#include <gmock/gmock.h>

#include <algorithm>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/cli/program.h"
#include "trestle/base/files.h"
#include "trestle/base/terminal.h"
#include "trestle/base/text.h"

namespace trestle {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Program : public ProgramTest {
 protected:
  static void SetUpTestSuite() {
    unsetenv("COLUMNS");  // of the shell that started the tests
    ProgramTest::SetUpTestSuite();
  }
};

// Help with single spaces instead of line breaks and columns.
std::string unwrapped(const std::string& words) {
  std::istringstream in(words);
  std::string out;
  for (std::string word; in >> word;) out += (out.empty() ? "" : " ") + word;
  return out;
}

int widest_line(const std::string& words) {
  int widest = 0;
  for (const std::string& line : split(words, '\n')) widest = std::max(widest, columns_of(line));
  return widest;
}

TEST_F(Program, EveryVerbHasHelpWithExamples) {
  for (const char* verb :
       {"train", "evaluate", "predict", "export", "view", "balance", "plan", "calibrate", "levels",
        "sweep", "data", "recipe", "doctor", "completion"}) {
    const Finished finished = run({verb, "--help"});
    EXPECT_EQ(finished.code, 0) << verb;
    EXPECT_THAT(finished.out, HasSubstr(std::string("Examples:\n  trestle ") + verb));
  }
  const Finished train = run({"train", "--help"});
  EXPECT_THAT(train.out, HasSubstr("Examples:\n  trestle train recipes/unet_quick.toml"));
  EXPECT_THAT(unwrapped(train.out),
              HasSubstr("--micro-batches number of micro-batches of a batch (an integer from 1 to "
                        "1000000000; default 1)"));
  EXPECT_EQ(run({"--version"}).out.substr(0, 8), "trestle ");
  EXPECT_EQ(run({}).code, 2);
}

TEST_F(Program, ViewDrawsSchedulesWithSeveralStagesPerRank) {
  const auto zbv = run({"view", "--schedule", "zbv", "--stages", "4", "--micro-batches", "3"});
  EXPECT_EQ(zbv.code, 0) << zbv.err;
  EXPECT_THAT(zbv.out, ::testing::AllOf(HasSubstr("3I0"), HasSubstr("0W2")));
  const auto looped = run({"view", "--schedule", "interleaved_1f1b", "--stages", "6",
                           "--stages-per-rank", "3", "--micro-batches", "4", "--json"});
  EXPECT_EQ(looped.code, 0) << looped.err;
  // The recipe's balance has one stage for each device.
  EXPECT_THAT(run({"train", TRESTLE_SOURCE_DIR "/recipes/two_linears.toml", "--schedule", "zbv",
                   "--dry-run"})
                  .err,
              HasSubstr("4 entries"));
}

TEST_F(Program, DoctorAndHelpListNamesOfTables) {
  EXPECT_THAT(run({"doctor"}).out,
              ::testing::AllOf(HasSubstr("libtorch"), HasSubstr("virtual:N (up to 64 of any size)"),
                               HasSubstr("1f1b, dualpipev, gpipe"),
                               HasSubstr("unet, unet3d, resnet18"), HasSubstr("arrays, carvana")));
  EXPECT_THAT(unwrapped(run({"doctor"}).out),
              HasSubstr("'attention' in [transformer], default fused: "
                        "_scaled_dot_product_flash_attention_for_cpu on cpu, "
                        "_scaled_dot_product_flash_attention_for_cpu on virtual devices, "
                        "scaled_dot_product_attention on GPUs"));
  for (const char* verb : {"synthesize", "check"})
    EXPECT_THAT(run({"data", verb, "--help"}).out,
                ::testing::AllOf(HasSubstr("carvana: photos of cars"), HasSubstr("mnist: hand")));
  EXPECT_THAT(unwrapped(run({"train", "--help"}).out),
              ::testing::AllOf(HasSubstr("which data set: arrays, carvana"),
                               HasSubstr("accuracy for arrays, dice for carvana")));
}

TEST_F(Program, HelpFitsTerminalAndListsRareFlagsOnRequest) {
  const Finished all = run({"--help-all"});  // of every verb
  EXPECT_EQ(all.code, 0);
  EXPECT_LE(widest_line(all.out), 80) << all.out;
  for (const char* flag : {"--one-cycle-rise", "--data.name", "--replicate", "--max-restarts"})
    EXPECT_THAT(all.out, HasSubstr(flag));
  const Finished usual = run({"train", "--help"});
  EXPECT_THAT(usual.out, ::testing::AllOf(HasSubstr("--epochs"), HasSubstr("--lr"),
                                          ::testing::Not(HasSubstr("--one-cycle-rise")),
                                          HasSubstr("trestle train --help-all")));
  for (const int columns : {40, 50}) {
    setenv("COLUMNS", text(columns).c_str(), 1);
    for (const char* verb : {"balance", "schedules"})
      EXPECT_LE(widest_line(run({verb, "--help"}).out), columns) << verb;
    unsetenv("COLUMNS");
  }
}

// A break in the source of a footer is none on the terminal.
TEST_F(Program, SentencesOfHelpAreWrappedOnce) {
  for (const char* verb : {"schedules", "evaluate", "export"}) {
    const std::string help = run({verb, "--help"}).out;
    const std::vector<std::string> lines = split(help.substr(help.find("\nExamples:")), '\n');
    for (std::size_t i = 0; i + 1 < lines.size(); ++i) {
      const std::string& line = lines[i];
      if (line.empty() || line.starts_with(' ') || line.ends_with('.') || line.ends_with(':'))
        continue;
      const std::string next_word = lines[i + 1].substr(0, lines[i + 1].find(' '));
      EXPECT_GT(columns_of(line) + 1 + columns_of(next_word), 80) << verb << ": " << line;
    }
  }
}

TEST_F(Program, TablesFitTerminal) {
  for (const std::vector<std::string>& words : std::vector<std::vector<std::string>>{
           {"view", "--schedule", "1f1b", "--stages", "4", "--micro-batches", "8"},
           {"view", "--schedule", "gpipe", "--costs", "1,2.137"},
           {"levels", "--dry-run"},
           {"balance", "small.toml"},
           {"doctor"}}) {
    const Finished done = run(words);
    ASSERT_EQ(done.code, 0) << done.err;
    EXPECT_LE(widest_line(done.out), 80) << done.out;
  }
  setenv("COLUMNS", "160", 1);
  EXPECT_THAT(run({"view", "--schedule", "1f1b", "--stages", "4", "--micro-batches", "8"}).out,
              ::testing::StartsWith("rank 0  0F0 0F1 0F2 0F3  .   .   .   .   .   .  0B0---- 0F4"));
  unsetenv("COLUMNS");
}

TEST_F(Program, PrintsJson) {
  const auto json = [](const std::vector<std::string>& words) {
    const Finished done = run(words);
    EXPECT_EQ(done.code, 0) << done.err;
    return nlohmann::json::parse(done.out);
  };
  EXPECT_THAT(json({"doctor", "--json"}).at("schedules"), ::testing::Contains("1f1b"));
  EXPECT_EQ(
      json({"recipe", "small.toml", "--lr", "0.5", "--json"}).at("optimizer").at("learning_rate"),
      0.5);
  const auto view = json({"view", "--schedule", "1f1b", "--stages", "4", "--micro-batches", "8",
                          "--out", "a.svg", "--json"});
  EXPECT_EQ(view.at("written"), nlohmann::json({"a.svg"}));
  EXPECT_EQ(view.at("panels").at(0).at("makespan"), 33);
  EXPECT_EQ(view.at("panels").at(0).at("peak_activations"), nlohmann::json({4, 3, 2, 1}));
  EXPECT_EQ(view.at("panels").at(0).at("actions").size(), 4u * 8u * 2u);
  const auto cars = json({"data", "check", "carvana", "--images", "cars/train_hq", "--masks",
                          "cars/train_masks", "--json"});
  EXPECT_EQ(cars.at("good_examples"), 16);
  EXPECT_EQ(cars.at("sizes").at("48 x 32 x 3"), 16);
}

TEST_F(Program, PrintsFailuresAsJson) {
  const auto error = [](const std::vector<std::string>& words, int code) {
    const Finished done = run(words);
    EXPECT_EQ(done.code, code) << done.err;
    EXPECT_THAT(done.err, ::testing::StartsWith("trestle: "));
    const nlohmann::json object = nlohmann::json::parse(split(trim(done.out), '\n').back());
    EXPECT_EQ(object.at("error").at("exit_code"), code);
    return object.at("error");
  };
  const auto flag = error({"recipe", "small.toml", "--json", "--epoch", "3"}, 2);
  EXPECT_EQ(flag.at("message"), "unknown flag '--epoch'; did you mean '--epochs'?");
  EXPECT_EQ(flag.at("hint"), "See trestle recipe --help.");
  const auto recipe = error({"train", "none.toml", "--json"}, 2);
  EXPECT_EQ(recipe.at("message"), "none.toml: no such recipe");
  EXPECT_THAT(recipe.at("hint"), HasSubstr("Name a TOML file"));
  EXPECT_EQ(run({"data", "synthesize", "mnist", "--count", "20", "--out", "twenty"}).code, 0);
  const Finished five =
      run({"data", "check", "mnist", "--folder", "twenty", "--classes", "5", "--json"});
  EXPECT_EQ(five.code, 1);
  const auto lines = split(trim(five.out), '\n');
  ASSERT_EQ(lines.size(), 2u) << five.out;
  EXPECT_FALSE(nlohmann::json::parse(lines[0]).at("problems").empty());
  EXPECT_TRUE(nlohmann::json::parse(lines[1]).contains("error"));
}

TEST_F(Program, ParseErrorsHaveWordsOfAllMessages) {
  const auto refusal = [](const std::vector<std::string>& words) {
    const Finished done = run(words);
    EXPECT_EQ(done.code, 2) << done.err;
    EXPECT_EQ(done.out, "");
    return done.err;
  };
  EXPECT_EQ(refusal({"nonsense", "--help"}),
            "trestle: unknown verb 'nonsense'. See trestle --help.\n");
  EXPECT_EQ(refusal({"data", "chek", "--help"}),
            "trestle: unknown verb 'chek'; did you mean 'check'? See trestle data --help.\n");
  EXPECT_EQ(refusal({"data"}),
            "trestle: data needs a verb: synthesize or check. See trestle data --help.\n");
  EXPECT_EQ(refusal({"data", "check"}),
            "trestle: data check needs a KIND. See trestle data check --help.\n");
  EXPECT_EQ(refusal({"predict", "runs/a", "--out", "b"}),
            "trestle: predict needs --images DIR. See trestle predict --help.\n");
  EXPECT_EQ(refusal({"completion", "csh"}),
            "trestle: shell must be bash, zsh or fish, not 'csh'; did you mean 'zsh'?\n");
  EXPECT_EQ(refusal({"levels", "--dry-run", "--svg", "a.svg"}),
            "trestle: give --svg or --dry-run, not both. See trestle levels --help.\n");
  EXPECT_EQ(refusal({"levels", "small.toml", "--layers", "3"}),
            "trestle: give a RECIPE or --layers, not both. See trestle levels --help.\n");
}

// A flag of the recipe is spelled as its key, or with dashes, with or without the section.
TEST_F(Program, FlagsOfRecipeHaveDashes) {
  for (const char* flag :
       {"--train.save_every", "--train.save-every", "--save_every", "--save-every"})
    EXPECT_THAT(run({"recipe", "small.toml", flag, "7"}).out, HasSubstr("save_every = 7")) << flag;
}

// The printed recipe trains like the original and includes the flags.
TEST_F(Program, RecipePrintsAllFields) {
  const Finished whole = run({"recipe", "small.toml", "--lr", "0.5"});
  ASSERT_EQ(whole.code, 0) << whole.err;
  EXPECT_THAT(whole.out,
              ::testing::AllOf(HasSubstr("learning_rate = 0.5"), HasSubstr("balance = [13, 9]"),
                               HasSubstr("schedule = \"gpipe\"")));
  write_file(folder_ / "whole.toml", whole.out);
  EXPECT_EQ(run({"recipe", "whole.toml"}).out, whole.out);
  EXPECT_EQ(run({"recipe", "none.toml"}).code, 2);
}

// The printed recipe has the mesh that `trestle train` would lay out with the same flags.
TEST_F(Program, RecipeTakesTheMeshAsTrainDoes) {
  const auto recipe = [](const std::vector<std::string>& flags) {
    std::vector<std::string> words = {"recipe", "small.toml", "--json"};
    words.insert(words.end(), flags.begin(), flags.end());
    const Finished done = run(words);
    EXPECT_EQ(done.code, 0) << done.err;
    return nlohmann::json::parse(done.out);
  };
  const auto mesh =
      recipe({"--mesh", "pipeline=2,tensor=2", "--sequence-parallel", "true"}).at("mesh");
  EXPECT_EQ(mesh.at("pipeline"), 2);
  EXPECT_EQ(mesh.at("tensor"), 2);
  EXPECT_EQ(mesh.at("sequence_parallel"), true);
  // A dimension that is not named has size 1, whatever the recipe has.
  write_file(folder_ / "laid_out.toml",
             read_file(folder_ / "small.toml") +
                 "\n[mesh]\nshard = 2\nshard_level = \"gradients\"\ntensor = 2\n");
  const Finished other = run({"recipe", "laid_out.toml", "--mesh", "replicate=2"});
  EXPECT_THAT(other.out,
              ::testing::AllOf(HasSubstr("replicate = 2"), HasSubstr("shard = 1"),
                               HasSubstr("shard_level = \"parameters\""), HasSubstr("tensor = 1")));
  const auto refusal = [](const std::vector<std::string>& flags) {
    std::vector<std::string> words = {"recipe", "small.toml"};
    words.insert(words.end(), flags.begin(), flags.end());
    const Finished refused = run(words);
    EXPECT_EQ(refused.code, 2) << refused.out;
    return refused.err;
  };
  EXPECT_THAT(refusal({"--mesh", "tensors=2"}), HasSubstr("did you mean 'tensor'?"));
  EXPECT_THAT(refusal({"--mesh", "tensor=2", "--tensor", "4"}),
              HasSubstr("--mesh tensor=2 lays out all ranks, but --tensor is given too"));
}

TEST_F(Program, CompletesVerbsAndFlags) {
  const Finished script = run({"completion", "bash"});
  ASSERT_EQ(script.code, 0) << script.err;
  EXPECT_EQ(completed({"tr"}), "train\n");
  EXPECT_EQ(completed({"train", "--epo"}), "--epochs\n");
  EXPECT_EQ(completed({"train", "--micro"}), "--micro-batches\n");
  EXPECT_EQ(completed({"data", "syn"}), "synthesize\n");
  EXPECT_EQ(completed({"data", "check", "--fol"}), "--folder\n");
  for (const char* shell : {"zsh", "fish"}) EXPECT_EQ(run({"completion", shell}).code, 0);
  EXPECT_EQ(run({"completion", "csh"}).code, 2);
}

TEST_F(Program, ViewDrawsSchedules) {
  const Finished text = run(
      {"view", "--schedule", "1f1b", "--stages", "4", "--micro-batches", "8", "--out", "a.svg"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("idle 27.3 % of 4 x 33 slots"));
  EXPECT_THAT(text.out, HasSubstr("wrote a.svg"));
  EXPECT_THAT(read_file(folder_ / "a.svg"), HasSubstr("<svg"));
  for (const char* out : {"a.json", "a.txt"})
    EXPECT_EQ(run({"view", "--schedule", "gpipe", "--costs", "1,2.5", "--out", out, "--save-csv",
                   "a.csv", "--overwrite"})
                  .code,
              0);
  const Finished again = run({"view", "--csv", "a.csv"});
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.out, HasSubstr("rank 3"));
}

TEST_F(Program, PrintsOneVersionEverywhere) {
  const std::string version = trim(run({"--version"}).out);
  EXPECT_THAT(run({"train", "small.toml", "--dry-run"}).out, ::testing::StartsWith(version + " "));
  EXPECT_THAT(run({"doctor"}).out, HasSubstr(version.substr(version.find(' ') + 1) + "\n"));
}

TEST_F(Program, ReadsSpreadsheetTables) {
  write_file(folder_ / "sheet.csv",
             "\xEF\xBB\xBF"
             "0F0,0B0\r\n\r\n1F0,1B0\r\n");
  const Finished drawn = run({"view", "--csv", "sheet.csv"});
  EXPECT_EQ(drawn.code, 0) << drawn.err;
  EXPECT_THAT(drawn.out, HasSubstr("rank 1 "));
}

TEST_F(Program, SynthesizesAndChecksData) {
  EXPECT_EQ(run({"data", "synthesize", "mnist", "--count", "20", "--out", "digits"}).code, 0);
  const Finished again = run({"data", "synthesize", "mnist", "--count", "20", "--out", "digits"});
  EXPECT_EQ(again.code, 2);
  EXPECT_THAT(again.err, HasSubstr("digits: the folder already has synthetic data: 20 digits"));
  const Finished digits = run({"data", "check", "mnist", "--folder", "digits"});
  EXPECT_EQ(digits.code, 0) << digits.err;
  const Finished five = run({"data", "check", "mnist", "--folder", "digits", "--classes", "5"});
  EXPECT_EQ(five.code, 1);
  EXPECT_THAT(five.err, HasSubstr("its target is class 9, but the classes are 0 to 4"));
  const Finished cars =
      run({"data", "check", "carvana", "--images", "cars/train_hq", "--masks", "cars/train_masks"});
  EXPECT_EQ(cars.code, 0) << cars.err;
  EXPECT_THAT(cars.out, HasSubstr("16 good examples, synthetic\n  16 of 48 x 32 x 3"));
}

}  // namespace
}  // namespace trestle
