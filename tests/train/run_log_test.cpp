// The lines that a run prints during its batches, and the log in its folder.
#include "trestle/train/run_folder/run_log.h"

#include <gmock/gmock.h>

#include <fstream>
#include <sstream>

#include "tests/train/training.h"
#include "trestle/train/run_folder/metrics.h"

namespace trestle::train {
namespace {

using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

class RunLogs : public Training {
 protected:
  static std::string log(const TrainResult& result) {
    return read_file(result.run_folder / "log.txt");
  }
  static std::size_t count(const std::string& text, const std::string& words) {
    std::size_t found = 0;
    for (auto at = text.find(words); at != std::string::npos; at = text.find(words, at + 1))
      ++found;
    return found;
  }
};

TEST_F(RunLogs, ContainPrintedLines) {
  recipe::Recipe often = recipe();
  often.train.log_every = 2;
  std::ostringstream out;
  const auto lines = make_progress(ProgressStyle::Lines, Colours::Off, out);
  TrainHooks heard = hooks();
  heard.progress = lines.get();
  const TrainResult result = train(often, heard);
  const std::string kept = log(result);
  EXPECT_THAT(kept, StartsWith("began     20"));
  EXPECT_EQ(kept.substr(kept.find('\n') + 1), out.str());
  EXPECT_THAT(kept,
              HasSubstr("\nrun       ContainPrintedLines · 2 epochs, 6 steps · writes into "));
  EXPECT_THAT(kept, ContainsRegex("\nepoch 1/2  2/3  loss [0-9.]+  learning rate 0.010  "));
  EXPECT_THAT(kept, ContainsRegex("\nepoch 2/2  validation 2/2  loss [0-9.]+  [0-9.]+ images/s"));
  EXPECT_THAT(kept, ContainsRegex("\nepoch 2/2 [^ ]+ 3/3  .* images/s  in [0-9.]+ m?s"));
  EXPECT_THAT(kept, ContainsRegex("epoch 2/2  2/3  .* left, run "))
      << "measured in the first epoch";
  EXPECT_EQ(count(kept, "  learning rate "), 2u) << "every second of three batches in two epochs";
  EXPECT_THAT(kept, HasSubstr("\ndone      2 epochs, 6 steps"));
}

TEST_F(RunLogs, NoTimeIsLeftAfterMaxSteps) {
  recipe::Recipe some = recipe();
  some.train.max_steps = 4;
  some.train.log_every = 1;
  EXPECT_THAT(log(train(some, hooks())),
              ContainsRegex(
                  "\nepoch 2/2  1/3  loss [0-9.]+  learning rate [0-9.]+(  run [0-9]+ s left)?\n"));
}

TEST_F(RunLogs, AreWrittenWithoutProgressAndOnTerminal) {
  EXPECT_THAT(log(train(recipe(), hooks())), HasSubstr("\ndone      2 epochs, 6 steps"));
  std::ostringstream out;
  const auto terminal = make_progress(ProgressStyle::Terminal, Colours::On, out, [] { return 30; });
  TrainHooks heard = hooks();
  heard.progress = terminal.get();
  const std::string kept = log(train(recipe(), heard));
  EXPECT_THAT(out.str(), HasSubstr("\x1b[2Kepoch 1/2"));
  EXPECT_THAT(kept, Not(HasSubstr("\x1b")));
  EXPECT_THAT(kept, Not(HasSubstr("\r")));
  EXPECT_THAT(kept, HasSubstr("5 layers · 7,898 parameters")) << "not folded";
}

TEST_F(RunLogs, ContinueWhenRunIsResumed) {
  const TrainResult part = train(recipe(), hooks(4));
  std::ofstream(part.run_folder / "log.txt", std::ios::app) << "a line that a crash cut o";
  const TrainResult whole = resume(part.run_folder, {{"train.epochs", "3"}}, hooks());
  const std::string kept = log(whole);
  EXPECT_THAT(kept, StartsWith("began     20"));
  EXPECT_THAT(kept, HasSubstr("\nstopped   1 epoch, 4 steps"));
  EXPECT_THAT(kept, ContainsRegex("cut o\nresumed   20[0-9TZ:-]+, after 4 steps\n"));
  EXPECT_THAT(kept, HasSubstr("\nchanged   train.epochs = 3, was 2\n"));
  EXPECT_THAT(kept, HasSubstr(" · resumes after 4 steps · writes into "));
  EXPECT_EQ(count(kept, "began "), 1u);
  const std::string before = kept;
  resume(part.run_folder, {}, hooks());
  EXPECT_EQ(log(whole), before) << "the run was complete";
}

TEST_F(RunLogs, RecordReasonOfFailure) {
  recipe::Recipe wild = recipe();
  wild.optimizer.name = "sgd";
  wild.optimizer.learning_rate = 1e6;
  wild.optimizer.weight_decay = 1e6;
  wild.train.epochs = 30;
  EXPECT_THROW(train(wild, hooks()), Error);
  EXPECT_THAT(read_file(fs::path(wild.train.runs) / wild.name / "log.txt"),
              ContainsRegex("\nfailed    the loss became .*\n.*Lower learning_rate"));
}

// The interval of a run's lines does not change its results.
TEST_F(RunLogs, OlderRunResumesWithOtherInterval) {
  const TrainResult whole = train(recipe(), hooks());
  TrainResult part = train(recipe(), hooks(4));
  std::string words = read_file(part.run_folder / "recipe.toml");
  const auto at = words.find("log_every");
  words.erase(at, words.find('\n', at) + 1 - at);  // as in a run from before this key existed
  write_file(part.run_folder / "recipe.toml", words);
  fs::remove(part.run_folder / "log.txt");
  part = resume(part.run_folder, {{"train.log_every", "1"}}, hooks());
  EXPECT_EQ(metrics(part.run_folder), metrics(whole.run_folder));
  EXPECT_THAT(log(part), StartsWith("resumed   20"));
  EXPECT_EQ(count(log(part), "  learning rate "), 2u);
}

TEST_F(RunLogs, EpochDurationIncludesTimeBeforeStop) {
  const TrainResult part = train(recipe(), hooks(1));
  const fs::path state = part.run_folder / "last/index.json";
  std::string words = read_file(state);
  const auto at = words.find("\"epoch_seconds\"");
  ASSERT_NE(at, std::string::npos);
  const auto value = words.find(':', at) + 1;
  words.replace(value, words.find_first_of(",}\n", value) - value, "1000");
  write_file(state, words);
  resume(part.run_folder, {}, hooks());
  const std::vector<EpochReport> epochs = read_epochs(part.run_folder / "metrics.jsonl");
  ASSERT_EQ(epochs.size(), 2u);
  EXPECT_GT(epochs[0].seconds, 1000);
  EXPECT_GT(epochs[1].seconds, 0);
  EXPECT_LT(epochs[1].seconds, 1000);
}

TEST_F(RunLogs, EpochDurationIsWrittenForTensorBoard) {
  const TrainResult result = train(recipe(), hooks());
  std::string events;
  for (const auto& entry : fs::directory_iterator(result.run_folder))
    if (entry.path().filename().string().find("tfevents") != std::string::npos)
      events += read_file(entry.path());
  EXPECT_EQ(count(events, "epoch/seconds"), 2u);
}

TEST(RunLog, ReportsFileThatCannotBeWritten) {
  RunLog log(nullptr);
  log.note("before");
  EXPECT_THROW(log.open("/dev/full", "began"), FileError);
  log.failed("this cannot be written either");
}

}  // namespace
}  // namespace trestle::train
