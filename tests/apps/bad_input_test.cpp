#include <gmock/gmock.h>

#include <fstream>

#include "tests/apps/program.h"
#include "trestle/base/files.h"

// What people get wrong: one clear message with the place and the way out,
// 2 for usage and 1 for failure.
namespace trestle {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::MatchesRegex;
using testing::Not;
using testing::StartsWith;

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

TEST_F(BadInput, AMisspeltKey) {
  write_recipe("key", "micro_batches = 2", "micro_batch = 2");
  expect(run({"train", "key.toml"}), 2,
         {"key.toml:17: unknown key 'micro_batch' in [pipeline]; did you mean 'micro_batches'?"});
}

TEST_F(BadInput, ABalanceThatDoesNotSum) {
  expect(run({"train", "small.toml", "--balance", "12,9"}), 2,
         {"balance [12, 9] covers 21 layers, the model has 22",
          "Leave 'balance' out to have it measured."});
}

TEST_F(BadInput, MoreStagesThanLayers) {
  std::string ones = "1";
  for (int i = 1; i < 23; ++i) ones += ",1";
  expect(run({"train", "small.toml", "--balance", ones}), 2, {"22 layers", "23 stages"});
}

TEST_F(BadInput, AMissingDataFolder) {
  expect(run({"train", "small.toml", "--images", "nowhere"}), 2,
         {"nowhere", "no such folder", "synthesize"});
}

TEST_F(BadInput, ADeviceThatDoesNotExist) {
  expect(run({"train", "small.toml", "--devices", "virtual:99"}), 2, {"virtual:99", "64"});
  expect(run({"train", "small.toml", "--devices", "tpu:0"}), 2,
         {"'tpu:0'", "Write cpu, virtual:2"});
}

TEST_F(BadInput, AWholeBatchLossUnder1F1B) {
  expect(run({"train", "small.toml", "--schedule", "1f1b"}), 2,
         {"'cross_entropy+dice' needs the outputs of the whole batch", "gpipe",
          "dice_per_micro_batch"});
}

TEST_F(BadInput, AnImageWithoutItsMask) {
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

TEST_F(BadInput, ACorruptJpeg) {
  fs::copy(folder_ / "cars", folder_ / "broken", fs::copy_options::recursive);
  for (const auto& entry : fs::directory_iterator(folder_ / "broken/train_hq"))
    fs::resize_file(entry.path(), fs::file_size(entry.path()) / 2);
  expect(
      run({"train", "small.toml", "--images", "broken/train_hq", "--masks", "broken/train_masks"}),
      1, {"broken/train_hq/", ".jpg"});
}

TEST_F(BadInput, ModelTooBigForItsDevice) {
  expect(run({"train", "small.toml", "--devices", "virtual:2x100KiB"}), 1,
         {"virtual:0", "out of memory", "100"});
}

TEST_F(BadInput, ADiskThatIsFull) {
  const Finished first = run({"train", "small.toml", "--name", "full", "--epochs", "1", "--quiet"});
  ASSERT_EQ(first.code, 0) << first.err;
  const std::string before = read_file(folder_ / "runs/full/last/weights.safetensors");
  expect(run({"train", "--resume", "runs/full", "--epochs", "2"}, {.largest_file = 100'000}), 1,
         {"What was saved before is whole", "trestle train --resume runs/full"});
  EXPECT_EQ(read_file(folder_ / "runs/full/last/weights.safetensors"), before);
  EXPECT_FALSE(fs::exists(folder_ / "runs/full/last.tmp"));
  EXPECT_EQ(run({"train", "--resume", "runs/full", "--epochs", "2", "--quiet"}).code, 0);
}

TEST_F(BadInput, WordsThatNoVerbKnows) {
  expect(run({"train", "small.toml", "--epoch", "3"}), 2, {"'--epoch'; did you mean '--epochs'?"});
  expect(run({"trian"}), 2, {"'trian'; did you mean 'train'?"});
  expect(run({"train"}), 2, {"a recipe", "--resume"});
  expect(run({"train", "nothing.toml"}), 2, {"nothing.toml: no such recipe"});
  expect(run({"train", "small.toml", "--epochs", "many"}), 2,
         {"'epochs' in [train] is an integer >= 1, not 'many'"});
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

TEST_F(BadInput, ViewAndPredict) {
  expect(run({"view"}), 2, {"--schedule NAME"});
  expect(run({"view", "--schedule", "gpip"}), 2, {"gpipe"});
  expect(run({"view", "--schedule", "gpipe", "--costs", "1,x"}), 2, {"'x' is not a time"});
  expect(run({"view", "--schedule", "gpipe", "--out", "a.bmp"}), 2, {".svg, .json"});
  expect(run({"view", "--schedule", "gpipe", "--costs", "1e308,1e308"}), 2,
         {"'1e308' is not a time above 0 and up to 1e+15"});
  expect(run({"view", "--schedule", "gpipe", "--stages", "1000", "--micro-batches", "1000"}), 2,
         {"a picture of 2000000 cells is too large", "draw fewer stages"});
  write_file(folder_ / "swapped.csv", "0B0,0F0\n");
  expect(run({"view", "--csv", "swapped.csv"}), 2, {"0B0 comes before 0F0"});
  write_file(folder_ / "bad.csv", "0F0,zzz\n");
  expect(run({"view", "--csv", "bad.csv"}), 1, {"zzz"});
  expect(run({"predict", "runs/none", "--images", "cars/train_hq", "--out", "m"}), 2,
         {"no such run folder"});
  expect(run({"predict", "small.toml", "--images", "cars/train_hq", "--out", "m"}), 2,
         {"no recipe.toml beside"});
}

}  // namespace
}  // namespace trestle
