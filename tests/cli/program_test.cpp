#include <gmock/gmock.h>

#include "tests/cli/program.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"

namespace trestle {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class Program : public ProgramTest {};

TEST_F(Program, EveryVerbHasHelpWithExamples) {
  for (const char* verb : {"train", "evaluate", "predict", "export", "view", "balance", "levels",
                           "sweep", "data", "recipe", "doctor", "completion"}) {
    const Finished finished = run({verb, "--help"});
    EXPECT_EQ(finished.code, 0) << verb;
    EXPECT_THAT(finished.out, HasSubstr(std::string("Examples:\n  trestle ") + verb));
  }
  const Finished train = run({"train", "--help"});
  EXPECT_THAT(train.out, HasSubstr("Examples:\n  trestle train recipes/unet_quick.toml"));
  EXPECT_THAT(train.out, HasSubstr("--pipeline.micro_batches"));
  EXPECT_THAT(
      train.out,
      HasSubstr("number of micro-batches of a batch (an integer from 1 to 1000000000; default 1)"));
  EXPECT_EQ(run({"--version"}).out.substr(0, 8), "trestle ");
  EXPECT_EQ(run({}).code, 2);
}

TEST_F(Program, DoctorAndHelpListNamesOfTables) {
  EXPECT_THAT(run({"doctor"}).out,
              ::testing::AllOf(HasSubstr("libtorch"), HasSubstr("virtual:N (up to 64 of any size)"),
                               HasSubstr("1f1b, gpipe"), HasSubstr("unet, resnet18"),
                               HasSubstr("arrays, carvana")));
  for (const char* verb : {"synthesize", "check"})
    EXPECT_THAT(run({"data", verb, "--help"}).out,
                ::testing::AllOf(HasSubstr("carvana: photos of cars"), HasSubstr("mnist: hand")));
  EXPECT_THAT(run({"train", "--help"}).out,
              ::testing::AllOf(HasSubstr("which data set: arrays, carvana"),
                               HasSubstr("accuracy for arrays, dice for carvana")));
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
                   "a.csv"})
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
