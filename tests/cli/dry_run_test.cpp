#include <gmock/gmock.h>

#include "tests/cli/program.h"

// A dry run refuses what the run refuses.
namespace trestle {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

class DryRun : public ProgramTest {};

TEST_F(DryRun, RefusesWhatRunRefuses) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> refused = {
      {{"--frozen", "norn"}, "'frozen' in [optimizer]: no layer or parameter is named 'norn'"},
      {{"--frozen", "*"}, "nothing is left to train"},
      {{"--rate-factors", "in"}, "\"pattern=factor\""},
      {{"--no-weight-decay", "nothing"}, "no layer or parameter is named 'nothing'"},
      {{"--weights", "none.safetensors"}, "none.safetensors: there is no such file"},
      {{"--batch", "1000"}, "examples to train on, fewer than one batch of 1000"},
      {{"--validation", "0", "--plateau", "true"}, "needs the validation metric"},
      {{"--validation", "0", "--patience", "3"}, "needs the validation metric"},
  };
  for (const auto& [flags, words] : refused) {
    std::vector<std::string> arguments = {"train", "small.toml", "--name", "refused"};
    arguments.insert(arguments.end(), flags.begin(), flags.end());
    const Finished trained = run(arguments);
    EXPECT_EQ(trained.code, 2) << words;
    arguments.emplace_back("--dry-run");
    const Finished planned = run(arguments);
    EXPECT_EQ(planned.code, 2) << words;
    EXPECT_EQ(planned.err, trained.err);
    EXPECT_THAT(planned.err, HasSubstr(words));
  }
  EXPECT_FALSE(fs::exists(folder_ / "runs/refused"));
}

// There is no GPU here: the seconds are those of the CPU, and the plan says so.
TEST_F(DryRun, NamesDeviceThatSecondsWereMeasuredOn) {
  const Finished gpus = run({"train", "small.toml", "--dry-run", "--devices", "cuda:0,cuda:1"});
  ASSERT_EQ(gpus.code, 0) << gpus.err;
  EXPECT_THAT(gpus.out,
              HasSubstr(" % idle (from small samples) on this machine's CPU, not on the GPUs"));
  EXPECT_THAT(gpus.out, HasSubstr("peak about"));
  EXPECT_THAT(run({"train", "small.toml", "--dry-run"}).out,
              HasSubstr(" % idle (from small samples)\n"));
}

TEST_F(DryRun, TakesTheLinkBetweenHosts) {
  const auto seconds = [](const std::vector<std::string>& flags) {
    std::vector<std::string> words = {"train", "small.toml", "--dry-run", "--json"};
    words.insert(words.end(), flags.begin(), flags.end());
    const Finished done = run(words);
    EXPECT_EQ(done.code, 0) << done.err;
    const std::string key = "\"predicted_step_seconds\":";
    return std::stod(done.out.substr(done.out.find(key) + key.size()));
  };
  // At 1 Mbit/s the messages between two stages take many times as long as the stages.
  EXPECT_GT(seconds({"--devices", "virtual:2", "--link", "1Mbit,5ms"}),
            2 * seconds({"--devices", "virtual:2"}));
  EXPECT_GT(seconds({"--mesh", "replicate=2", "--link", "1Mbit,5ms"}),
            2 * seconds({"--mesh", "replicate=2"}));
  const Finished plan =
      run({"train", "small.toml", "--dry-run", "--mesh", "replicate=2", "--link", "1Mbit,5ms"});
  EXPECT_THAT(plan.out, HasSubstr("network   1 Mbit/s and 5 ms each way (given) · each rank on a "
                                  "host of its own\n"));
  EXPECT_THAT(plan.out, HasSubstr(" of it data-parallel communication"));
  const Finished refused = run({"train", "small.toml", "--dry-run", "--link", "fast"});
  EXPECT_EQ(refused.code, 2);
  EXPECT_THAT(refused.err, HasSubstr("'fast' is not a bandwidth such as 100Mbit"));
}

// "--shape 3,64,64" of train and "--set data.shape=3,64,64" of sweep are one spelling.
TEST_F(DryRun, TrainTakesFieldsAsSweepDoes) {
  const auto planned = [](const std::vector<std::string>& flags) {
    std::vector<std::string> words = {"train", "small.toml", "--dry-run", "--json"};
    words.insert(words.end(), flags.begin(), flags.end());
    const Finished done = run(words);
    EXPECT_EQ(done.code, 0) << done.err;
    const auto begin = done.out.find("\"micro_batches\"");
    return done.out.substr(begin, done.out.find(',', begin) - begin);
  };
  EXPECT_EQ(planned({"--set", "micro_batches=4"}), "\"micro_batches\":4");
  EXPECT_EQ(planned({"--set", "pipeline.micro_batches=4", "--set", "train.batch=4"}),
            planned({"--micro-batches", "4", "--batch", "4"}));
  const Finished twice =
      run({"train", "small.toml", "--dry-run", "--epochs", "2", "--set", "train.epochs=3"});
  EXPECT_EQ(twice.code, 2);
  EXPECT_THAT(twice.err, HasSubstr("--set train.epochs=3: 'train.epochs' is given twice"));
  const Finished unknown = run({"train", "small.toml", "--dry-run", "--set", "bach=3"});
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.err, HasSubstr("did you mean 'batch'?"));
}

}  // namespace
}  // namespace trestle
