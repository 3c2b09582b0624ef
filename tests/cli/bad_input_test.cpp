#include <gmock/gmock.h>

#include <fstream>

#include "tests/cli/program.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"

// Users' errors: one clear message with place and hint, exit code 2 for usage errors and 1 for
// failures.
namespace trestle {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;
using ::testing::StartsWith;

class BadInput : public ProgramTest {
 protected:
  static void expect(const Finished& finished, int code, const std::vector<std::string>& words) {
    EXPECT_EQ(finished.code, code) << finished.err;
    EXPECT_THAT(finished.err, HasSubstr("trestle: "));
    EXPECT_THAT(finished.err,
                AllOf(Not(HasSubstr("frame #")), Not(HasSubstr("Exception raised from")),
                      Not(HasSubstr("terminate called"))));
    for (const std::string& word : words) EXPECT_THAT(finished.err, HasSubstr(word));
  }
};

TEST_F(BadInput, RefusesMisspelledKey) {
  write_recipe("key", "micro_batches = 2", "micro_batch = 2");
  expect(run({"train", "key.toml"}), 2,
         {"key.toml:17: unknown key 'micro_batch' in [pipeline]; did you mean 'micro_batches'?"});
}

TEST_F(BadInput, RefusesBalanceThatDoesNotSum) {
  expect(run({"train", "small.toml", "--balance", "12,9"}), 2,
         {"balance [12, 9] covers 21 layers, the model has 22",
          "Leave 'balance' empty to have it measured."});
}

TEST_F(BadInput, RefusesMoreStagesThanLayers) {
  std::string ones = "1";
  for (int i = 1; i < 23; ++i) ones += ",1";
  expect(run({"train", "small.toml", "--balance", ones, "--devices", "cpu"}), 2,
         {"22 layers", "23 stages"});
}

TEST_F(BadInput, RefusesMissingDataFolder) {
  expect(run({"train", "small.toml", "--images", "nowhere"}), 2,
         {"nowhere", "no such folder", "synthesize"});
}

TEST_F(BadInput, RefusesUnknownDevice) {
  expect(run({"train", "small.toml", "--devices", "virtual:99"}), 2, {"virtual:99", "64"});
  expect(run({"train", "small.toml", "--devices", "tpu:0"}), 2,
         {"'tpu:0'", "Write cpu, virtual:2"});
}

TEST_F(BadInput, RefusesWholeBatchLossUnder1F1B) {
  expect(run({"train", "small.toml", "--schedule", "1f1b"}), 2,
         {"'cross_entropy+dice' needs the outputs of the whole batch", "gpipe",
          "dice_per_micro_batch"});
}

TEST_F(BadInput, NamesImageWithoutMask) {
  fs::copy(folder_ / "cars", folder_ / "half", fs::copy_options::recursive);
  const fs::path mask = fs::directory_iterator(folder_ / "half/train_masks")->path();
  fs::remove(mask);
  const std::string id = mask.stem().string().substr(0, mask.stem().string().find("_mask"));
  const std::vector<std::string> where = {"--images", "half/train_hq", "--masks",
                                          "half/train_masks"};
  std::vector<std::string> arguments = {"train", "small.toml"};
  arguments.insert(arguments.end(), where.begin(), where.end());
  expect(run(arguments), 2, {id, "no mask"});
  arguments = {"data", "check", "carvana"};
  arguments.insert(arguments.end(), where.begin(), where.end());
  expect(run(arguments), 1, {id, "1 problem"});
}

TEST_F(BadInput, NamesCorruptJpeg) {
  fs::copy(folder_ / "cars", folder_ / "broken", fs::copy_options::recursive);
  for (const auto& entry : fs::directory_iterator(folder_ / "broken/train_hq"))
    fs::resize_file(entry.path(), fs::file_size(entry.path()) / 2);
  expect(
      run({"train", "small.toml", "--images", "broken/train_hq", "--masks", "broken/train_masks"}),
      1, {"broken/train_hq/", ".jpg"});
}

TEST_F(BadInput, ReportsModelTooBigForDevice) {
  expect(run({"train", "small.toml", "--devices", "virtual:2x100KiB"}), 1,
         {"virtual:0", "out of memory", "100"});
}

TEST_F(BadInput, JsonEndsWithFailure) {
  const Finished wild =
      run({"train", "small.toml", "--name", "wild", "--json", "--optimizer.name", "sgd", "--lr",
           "1e6", "--optimizer.weight_decay", "1e6", "--batch", "2", "--devices", "cpu"});
  EXPECT_EQ(wild.code, 1);
  const std::vector<std::string> lines = split(trim(wild.out), '\n');
  ASSERT_GE(lines.size(), 2u);
  EXPECT_THAT(lines[lines.size() - 2],
              AllOf(HasSubstr("{\"event\":\"failed\",\"reason\":\""), HasSubstr("became ")));
  EXPECT_THAT(lines.back(), AllOf(HasSubstr("{\"error\":{\"message\":\""), HasSubstr("became "),
                                  HasSubstr("\"exit_code\":1}}")));
  // Nothing was saved, so the message must not speak of a checkpoint that is there.
  EXPECT_FALSE(fs::exists(folder_ / "runs/wild/last"));
  EXPECT_THAT(wild.err, Not(HasSubstr("The last checkpoint")));
}

TEST_F(BadInput, RefusesMoreDataThanAnyDiskHolds) {
  for (const std::string count : {"0", "100000001", "99999999999"})
    expect(run({"data", "synthesize", "mnist", "--count", count, "--out", "many"}), 2,
           {"--count must be a whole number from 1 to 100000000, not '" + count + "'"});
}

TEST_F(BadInput, KeepsLastSaveWhenDiskIsFull) {
  const Finished first = run({"train", "small.toml", "--name", "full", "--epochs", "1", "--quiet"});
  ASSERT_EQ(first.code, 0) << first.err;
  const std::string before = read_file(folder_ / "runs/full/last/weights.safetensors");
  expect(run({"train", "--resume", "runs/full", "--epochs", "2"}, {.largest_file = 100'000}), 1,
         {"The earlier checkpoint is intact", "trestle train --resume runs/full"});
  EXPECT_EQ(read_file(folder_ / "runs/full/last/weights.safetensors"), before);
  EXPECT_FALSE(fs::exists(folder_ / "runs/full/last.tmp"));
  EXPECT_EQ(run({"train", "--resume", "runs/full", "--epochs", "2", "--quiet"}).code, 0);
}

TEST_F(BadInput, ReportsDiskFullBeforeFirstSave) {
  expect(run({"train", "small.toml", "--name", "filled", "--epochs", "1", "--quiet",
              "--optimizer.name", "adam"},
             {.largest_file = 600'000}),
         1, {"runs/filled/best.safetensors is intact, but there is no checkpoint to resume from"});
  EXPECT_TRUE(fs::exists(folder_ / "runs/filled/best.safetensors"));
}

TEST_F(BadInput, RefusesFewerEpochsThanRunHas) {
  ASSERT_EQ(run({"train", "small.toml", "--name", "two", "--quiet"}).code, 0);
  const std::string before = read_file(folder_ / "runs/two/recipe.toml");
  expect(run({"train", "--resume", "runs/two", "--epochs", "1"}), 2,
         {"runs/two: has finished 2 epochs, more than the 1 requested",
          "Choose --epochs above 2 to continue."});
  const Finished equal = run({"train", "--resume", "runs/two"});
  EXPECT_EQ(equal.code, 0) << equal.err;
  EXPECT_THAT(equal.out,
              HasSubstr("nothing to do: runs/two has all its epochs, 2 (--epochs 3 or more"));
  EXPECT_THAT(equal.out, HasSubstr("best dice"));
  EXPECT_EQ(read_file(folder_ / "runs/two/recipe.toml"), before);
}

TEST_F(BadInput, RefusesRunNamesThatAreNoFolderNames) {
  for (const char* name : {"a/b", "../evil", "-x", ".hidden", "..", "line\nbreak"}) {
    const std::string flag = std::string("--name=") + name;
    expect(run({"train", "small.toml", flag}), 2, {"a run cannot be named", "A name is that of"});
    expect(run({"train", "small.toml", flag, "--dry-run"}), 2, {"a run cannot be named"});
  }
  expect(run({"train", "small.toml", "--name", ""}), 2, {"--name is empty"});
  EXPECT_FALSE(fs::exists(folder_ / "evil"));
}

TEST_F(BadInput, RefusesFlagsWithoutEffect) {
  write_file(folder_ / "two.csv", "0F0,0B0\n");
  expect(run({"view", "--csv", "two.csv", "--stages", "3"}), 2,
         {"--stages has no effect with --csv", "Leave it out."});
  expect(run({"view", "runs/x", "--costs", "1,2"}), 2, {"--costs has no effect with a run folder"});
  expect(run({"view", "--schedule", "zbv", "--stages", "5"}), 2, {"Give 4 or 6 stages."});
  expect(run({"view", "--schedule", "zb_h1", "--stages-per-rank", "2"}), 2, {"It has 1."});
  expect(run({"view", "--schedule", "1f1b", "--backward-order", "forward"}), 2,
         {"--backward-order has no effect with --schedule 1f1b"});
  expect(run({"view", "--schedule", "gpipe", "--out", ""}), 2, {"--out is empty"});
  expect(run({"train", "--resume", "runs/x", "--name", "y", "--dry-run"}), 2,
         {"--name and --dry-run have no effect with --resume"});
  expect(run({"train", "--resume", "runs/x", "--runs", "elsewhere"}), 2,
         {"--runs has no effect with --resume"});
  expect(run({"train", "small.toml", "--json", "--quiet"}), 2, {"--json or --quiet"});
  expect(run({"train", "small.toml", "--validation", "0", "--plateau", "true"}), 2,
         {"'plateau' in [optimizer] needs the validation metric"});
  expect(run({"train", "small.toml", "--validation", "0", "--patience", "3"}), 2,
         {"'patience' in [train] needs the validation metric", "patience = 0"});
  expect(run({"train", "small.toml", "--validation", "0", "--keep-best", "3"}), 2,
         {"'keep_best' in [train] needs the validation metric"});
  expect(run({"data", "check", "mnist", "--folder", ".", "--masks", "."}), 2,
         {"--masks has no effect for mnist"});
  expect(run({"data", "synthesize", "mnist", "--count", "6", "--out", "d", "--width", "9"}), 2,
         {"digits are 28 x 28 pixels"});
  expect(run({"train", "small.toml", "--folder", "x"}), 2,
         {"'folder' in [data] has no effect for 'carvana'", "Leave it out."});
  expect(run({"sweep", "small.toml", "--over", "milestones=3;4", "--dry-run"}), 2,
         {"'milestones' in [optimizer] has no effect for the learning-rate schedule 'constant'"});
}

TEST_F(BadInput, NamesMissingFiles) {
  expect(run({"view", "--csv", "none.csv"}), 2, {"--csv: there is no file 'none.csv'"});
  expect(run({"view", "--schedule", "gpipe", "--out", "none/a.svg"}), 2,
         {"--out none/a.svg: there is no folder 'none'", "mkdir -p none"});
  expect(run({"data", "check", "carvana", "--images", "none", "--masks", "."}), 2,
         {"--images: there is no folder 'none'"});
  expect(run({"predict", "runs/x", "--images", "none", "--out", "m"}), 2, {"runs/x"});
  write_file(folder_ / "cut.toml", "[train\n");
  expect(run({"train", "cut.toml"}), 2, {"cut.toml:1: "});
}

TEST_F(BadInput, SynthesisPrintsNothingBeforeItHasWritten) {
  const Finished finished =
      run({"data", "synthesize", "carvana", "--count", "1", "--out", "/dev/null/none"});
  EXPECT_NE(finished.code, 0);
  EXPECT_THAT(finished.err, HasSubstr("/dev/null/none"));
  EXPECT_EQ(finished.out, "");
}

TEST_F(BadInput, PrintsWholeRanges) {
  expect(run({"train", "small.toml", "--data.workers", "0"}), 2,
         {"'workers' in [data] must be an integer from 1 to 256, not 0"});
  expect(run({"train", "small.toml", "--epochs", "2000000000"}), 2,
         {"an integer from 1 to 1000000000, not 2000000000"});
}

TEST_F(BadInput, RefusesImagesThatModelCannotTake) {
  expect(run({"train", "small.toml", "--scale", "0.05", "--dry-run"}), 2,
         {"the model 'unet' cannot take these inputs of 3 x 1 x 2 (channels, height, width)",
          "'scale' in [data]"});
  expect(run({"train", "small.toml", "--channels", "5"}), 2,
         {"image files have 1 channel (grey) or 3 (RGB), not 5", "'channels' in [model]"});
  EXPECT_EQ(run({"train", "small.toml", "--channels", "1", "--dry-run"}).code, 0) << "in grey";
}

TEST_F(BadInput, ReportsModelTooBigForMachine) {
  // 225 TB exceeds a process's address space, so it fails however the system overcommits memory.
  expect(run({"train", "small.toml", "--width", "2500000", "--dry-run"}), 1,
         {"this machine is out of memory: could not allocate ", "while creating layer", "'width'"});
}

TEST_F(BadInput, ReportsTruncatedTimeline) {
  ASSERT_EQ(run({"train", "small.toml", "--name", "cut", "--epochs", "1", "--quiet"}).code, 0);
  fs::resize_file(folder_ / "runs/cut/timeline.json", 100);
  expect(run({"view", "runs/cut"}), 1, {"runs/cut/timeline.json: ", "not JSON"});
}

TEST_F(BadInput, SuggestsNearestWord) {
  expect(run({"train", "small.toml", "--epoch", "3"}), 2, {"'--epoch'; did you mean '--epochs'?"});
  expect(run({"trian"}), 2, {"'trian'; did you mean 'train'?"});
  expect(run({"train"}), 2, {"a recipe", "--resume"});
  expect(run({"train", "nothing.toml"}), 2, {"nothing.toml: no such recipe"});
  expect(run({"train", "small.toml", "--epochs", "many"}), 2,
         {"'epochs' in [train] must be an integer from 1 to 1000000000, not 'many'"});
  expect(run({"train", "--resume", "cars"}), 2, {"cars: not a run folder"});
  expect(run({"train", "small.toml", "--optimizer.name", "rmspro"}), 2,
         {"did you mean 'rmsprop'?"});
  expect(run({"train", "small.toml", "--model.name", "unett"}), 2, {"did you mean 'unet'?"});
  expect(run({"train", "small.toml", "--data.name", "carvna"}), 2,
         {"unknown data set 'carvna'; did you mean 'carvana'?"});
  expect(run({"train", "small.toml", "--metric", "dise"}), 2,
         {"unknown metric 'dise'; did you mean 'dice'?"});
  expect(run({"data", "check", "mnits", "--folder", "."}), 2, {"did you mean 'mnist'?"});
  expect(run({"data", "check", "carvana", "--images", "."}), 2,
         {"data check carvana needs --images DIR and --masks DIR"});
}

// Regression: --fsdp suggested --flip. The names of other programs name the right flags.
TEST_F(BadInput, NamesFlagsThatDoWhatOtherProgramsFlagsDo) {
  for (const std::string flag : {"--fsdp", "--zero3"})
    expect(run({"train", "small.toml", flag}), 2,
           {"unknown flag '" + flag + "'; write --mesh shard=N --shard-level parameters."});
  expect(run({"train", "small.toml", "--ddp"}), 2, {"'--ddp'; write --mesh replicate=N."});
  expect(run({"train", "small.toml", "--nproc_per_node", "2"}), 2, {"; write --ranks N."});
  const Finished far = run({"train", "small.toml", "--fsxy"});
  EXPECT_EQ(far.code, 2);
  EXPECT_THAT(far.err, AllOf(HasSubstr("unknown flag '--fsxy'."), Not(HasSubstr("did you mean"))));
}

TEST_F(BadInput, RefusesEndlessFilesAtOnce) {
  expect(run({"train", "/dev/zero"}), 1, {"/dev/zero: is a device, not a file"});
  expect(run({"balance", "small.toml", "--profile", "/dev/zero"}), 1,
         {"/dev/zero: is a device, not a file"});
  expect(run({"train", "small.toml", "--deepspeed", "/dev/urandom"}), 1,
         {"/dev/urandom: is a device, not a file"});
  expect(run({"train", "small.toml", "--weights", "/dev/zero"}), 1,
         {"/dev/zero: is a device or a pipe, not a weights file"});
  write_file(folder_ / "long.toml", "a");
  fs::resize_file(folder_ / "long.toml", std::uintmax_t{2} << 40);
  expect(run({"train", "long.toml"}), 1, {"long.toml: it has 2.0 TiB, and text has at most"});
  fs::remove(folder_ / "long.toml");
}

TEST_F(BadInput, MissingMnistNamesItsDownload) {
  expect(run({"train", "small.toml", "--data.name", "mnist", "--folder", "nowhere"}), 2,
         {"nowhere: no such folder", "tools/get_mnist nowhere"});
}

// Regression: such numbers became 18446744073709551615, 8, and the largest number.
TEST_F(BadInput, ReadsNumbersOfFlagsAsThoseOfRecipes) {
  const auto drawn = [](const std::string& flag, const std::string& value) {
    return run({"data", "synthesize", "carvana", "--out", "drawn", "--count", "1", flag, value});
  };
  for (const char* seed : {"-1", "99999999999999999999", "0x10", "1.5", "one"})
    expect(drawn("--seed", seed), 2,
           {"--seed must be a whole number from 0 to 9000000000000000000, not '", seed});
  expect(drawn("--width", "1e3"), 2, {"--width must be a whole number", "not '1e3'"});
  EXPECT_FALSE(fs::exists(folder_ / "drawn"));
  const Finished ten = run({"view", "--schedule", "gpipe", "--stages", "010"});
  EXPECT_THAT(ten.out, HasSubstr("rank 9"));
  expect(run({"view", "--schedule", "gpipe", "--stages", "99999999999999999999"}), 2,
         {"--stages must be a whole number"});
  write_file(folder_ / "words.txt", "words");
  expect(
      run({"data", "check", "arrays", "--input-array", "nowhere", "--target-array", "words.txt"}),
      2, {"--input-array: there is no file 'nowhere'"});
}

TEST_F(BadInput, AcceptsCommonAliasesAndRefusesRepeatedFlags) {
  expect(run({"train", "small.toml", "--epochs"}), 2, {"--epochs needs a value"});
  expect(run({"train", "small.toml", "--", "--epochs", "3"}), 2, {"put it before"});
  expect(run({"train", "small.toml", "--devices", "virtual:3"}), 2,
         {"has 2 stages, and 3 devices are given", "--balance \"[]\""});
  expect(run({"train", "small.toml", "--epochs", "3", "--epochs", "4"}), 2,
         {"--epochs is given more than once"});
  expect(run({"recipe", "small.toml", "--batch-size=3", "--train.batch=5"}), 2,
         {"--batch is given more than once"});
  const Finished named = run(
      {"train", "small.toml", "--dry-run", "--model", "unet", "--lr", "0.1", "--batch-size", "2"});
  EXPECT_EQ(named.code, 0) << named.err;
  EXPECT_THAT(named.out, HasSubstr("steps of 2"));
}

TEST_F(BadInput, RefusesInvalidViewAndPredict) {
  expect(run({"view"}), 2, {"--schedule NAME"});
  expect(run({"view", "--schedule", "gpip"}), 2, {"gpipe"});
  expect(run({"view", "--schedule", "gpipe", "--costs", "1,x"}), 2, {"'x' is not a time"});
  const Finished ending =
      run({"view", "--schedule", "gpipe", "--out", "a.bmp", "--save-csv", "unwritten.csv"});
  expect(ending, 2, {".svg, .json"});
  EXPECT_EQ(ending.out, "") << "the error comes before any output";
  EXPECT_FALSE(fs::exists(folder_ / "unwritten.csv"));
  expect(run({"view", "--schedule", "gpipe", "--costs", "1e308,1e308"}), 2,
         {"'1e308' is not a time above 0 and up to 1e+15"});
  expect(run({"view", "--schedule", "gpipe", "--stages", "1000", "--micro-batches", "1000"}), 2,
         {"a picture of 2000000 cells is too large", "draw fewer stages"});
  write_file(folder_ / "swapped.csv", "0B0,0F0\n");
  expect(run({"view", "--csv", "swapped.csv"}), 2,
         {"swapped.csv:1: column 1: 0B0 comes before 0F0", ">0B0<"});
  write_file(folder_ / "bad.csv", "0F0,zzz\n");
  expect(run({"view", "--csv", "bad.csv"}), 2, {"bad.csv:1: column 2: ", "zzz"});
  expect(run({"predict", "runs/none", "--images", "cars/train_hq", "--out", "m"}), 2,
         {"no such run folder"});
  expect(run({"predict", "small.toml", "--images", "cars/train_hq", "--out", "m"}), 2,
         {"no recipe.toml beside"});
}

}  // namespace
}  // namespace trestle
