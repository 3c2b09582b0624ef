#include <gmock/gmock.h>

#include <unistd.h>

#include <csignal>

#include "tests/cli/program.h"
#include "trestle/base/files.h"
#include "trestle/base/terminal.h"
#include "trestle/base/text.h"

namespace trestle {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

const char* const toy = R"([model]
name = "two_linears"
classes = 5

[data]
name = "random"
shape = [10]
count = 40
targets = "normal"

[devices]
use = "virtual:2"

[pipeline]
balance = [2, 1]

[optimizer]
name = "sgd"

[train]
batch = 20
)";

class SweepVerb : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fs::path(TRESTLE_BINARY_DIR) / "scratch" / ("sweep_" + std::to_string(getpid()));
    fs::remove_all(folder_);
    fs::create_directories(folder_);
    write_file(folder_ / "toy.toml", toy);
  }
  void TearDown() override { fs::remove_all(folder_); }
  Finished run(const std::vector<std::string>& arguments) {
    return Started(folder_, arguments).wait();
  }
  // A minimal sweep of split sizes with further arguments.
  static std::vector<std::string> sizes(const std::string& values,
                                        const std::vector<std::string>& more = {},
                                        const std::string& runs = "2") {
    std::vector<std::string> words = {"sweep",   "toy.toml", "--over",    "split_size=" + values,
                                      "--steps", "2",        "--warm-up", "1",
                                      "--runs",  runs};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  fs::path folder_;
};

TEST_F(SweepVerb, LongNamesFoldAtEightyColumns) {
  const Finished done =
      run({"sweep", "toy.toml", "--over", "optimizer.one_cycle_highest_momentum=0.95,0.96", "--set",
           "optimizer.learning_rate_schedule=one_cycle", "--set",
           "optimizer.one_cycle_momentum=true", "--set", "optimizer.momentum=0.9", "--over",
           "pipeline.split_size=10,20", "--runs", "1", "--steps", "1", "--warm-up", "0"});
  EXPECT_EQ(done.code, 0) << done.err;
  for (const std::string& line : split(done.out, '\n')) EXPECT_LE(columns_of(line), 80) << line;
}

TEST_F(SweepVerb, RefusesKeysThatNeedRanks) {
  const auto refusal = [this](std::vector<std::string> words) {
    words.insert(words.begin(), {"sweep", "toy.toml", "--dry-run"});
    const Finished done = run(words);
    EXPECT_EQ(done.code, 2) << done.out;
    EXPECT_THAT(done.err, AllOf(HasSubstr("a sweep measures in one process"),
                                Not(HasSubstr("--ranks")), Not(HasSubstr("--mesh"))));
    return done.err;
  };
  EXPECT_THAT(refusal({"--over", "mesh.shard=1,2"}), HasSubstr("'shard' = 2 in [mesh]"));
  EXPECT_THAT(refusal({"--over", "mesh.shard_level=parameters,gradients"}),
              HasSubstr("'shard_level'"));
  EXPECT_THAT(refusal({"--over", "split_size=5,10", "--set", "mesh.replicate=2"}),
              HasSubstr("'replicate' = 2 in [mesh]"));
}

TEST_F(SweepVerb, MeasuresEachPointAndDrawsCurve) {
  const Finished done = run(sizes("5,7,20"));
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out,
              AllOf(HasSubstr("sweep     3 points, each 2 runs of 2 steps after 1 to warm up"),
                    ContainsRegex("6/6  pipeline.split_size = 20 +[0-9.]+ [mu]s per step \\(pred"),
                    ContainsRegex("pipeline.split_size = [0-9]+ .* best\n"),
                    HasSubstr("wrote runs/toy_sweep/sweep.png")));
  const fs::path out = folder_ / "runs" / "toy_sweep";
  const std::string csv = read_file(out / "sweep.csv");
  // 20 samples by 7 are micro-batches of 7, 7 and 6.
  EXPECT_THAT(csv, ContainsRegex("\ntoy,7,3,2,[0-9.e-]+,[0-9.e-]+,[0-9.e-]+,[0-9.e-]+,"));
  EXPECT_THAT(csv, ContainsRegex("\ntoy,20,1,2,"));
  EXPECT_THAT(read_file(out / "sweep.svg"), HasSubstr("pipeline.split_size"));
  EXPECT_EQ(read_file(out / "sweep.png").substr(1, 3), "PNG");
  EXPECT_THAT(read_file(out / "sweep.json"), HasSubstr("\"finished\": true"));
}

TEST_F(SweepVerb, ReusesMeasurements) {
  ASSERT_EQ(run(sizes("5,10")).code, 0);
  const std::string before = read_file(folder_ / "runs/toy_sweep/measurements.jsonl");
  const Finished planned = run(sizes("5,10,20", {"--dry-run"}));
  EXPECT_THAT(planned.out, AllOf(HasSubstr("pipeline.split_size = 10   2 of 2 runs measured\n"),
                                 HasSubstr("pipeline.split_size = 20   0 of 2 runs measured\n")));
  const Finished more = run(sizes("5,10,20"));
  ASSERT_EQ(more.code, 0) << more.err;
  EXPECT_THAT(more.out, AllOf(HasSubstr("6/6  pipeline.split_size = 20"),
                              Not(HasSubstr("/6  pipeline.split_size = 5"))));
  EXPECT_THAT(read_file(folder_ / "runs/toy_sweep/measurements.jsonl"),
              ::testing::StartsWith(before));
  // Other settings are new measurements.
  const Finished other = run(sizes("5,10", {"--dry-run", "--set", "batch=10"}));
  EXPECT_THAT(other.out, HasSubstr("split_size = 10   0 of 2 runs measured"));
}

TEST_F(SweepVerb, ResumesAfterStop) {
  Started first(folder_, sizes("1,2,3,4,5,6,7,8,9,10", {"--json"}, "20"));
  ASSERT_TRUE(first.wait_for("\"done\":3"));
  first.send(SIGINT);
  const Finished stopped = first.wait();
  EXPECT_EQ(stopped.code, 130);
  EXPECT_THAT(stopped.err, HasSubstr("stopping; the measurements are kept"));
  EXPECT_THAT(stopped.out, HasSubstr("\"finished\":false"));
  const Finished again = run(sizes("1,2,3,4,5,6,7,8,9,10", {}, "1"));
  EXPECT_EQ(again.code, 0) << again.err;
  EXPECT_THAT(again.out, Not(HasSubstr("/10  pipeline.split_size = 1 ")));
}

TEST_F(SweepVerb, ComparesRecipesAsBars) {
  write_file(folder_ / "other.toml", toy);
  const Finished done = run({"sweep", "toy.toml", "other.toml", "--runs", "1", "--steps", "1",
                             "--set", "batch=10", "--out", "compared", "--json"});
  ASSERT_EQ(done.code, 0) << done.err;
  EXPECT_THAT(done.out, AllOf(HasSubstr("\"point\":\"other\""), HasSubstr("\"event\":\"done\"")));
  EXPECT_THAT(read_file(folder_ / "compared/sweep.svg"),
              AllOf(HasSubstr(">other<"), HasSubstr(">toy<")));
}

TEST_F(SweepVerb, ReportsFailedPointAndContinues) {
  const Finished done = run({"sweep", "toy.toml", "--over", "devices.use=virtual:2;virtual:2x1KiB",
                             "--runs", "1", "--steps", "1"});
  EXPECT_EQ(done.code, 1);
  EXPECT_THAT(done.err,
              AllOf(HasSubstr("1 of 2 points failed"), HasSubstr("devices.use = virtual:2x1KiB: "),
                    HasSubstr("out of memory")));
  EXPECT_THAT(done.out, AllOf(HasSubstr("1/2  devices.use = virtual:2 "),
                              HasSubstr("2/2  devices.use = virtual:2x1KiB  failed")))
      << "a point that failed is counted";
  EXPECT_THAT(read_file(folder_ / "runs/toy_sweep/sweep.csv"), HasSubstr("toy,virtual:2,1,1,"));
}

TEST_F(SweepVerb, RefusesInvalidSweepsBeforeMeasuring) {
  const auto refusal = [&](const std::vector<std::string>& words) {
    const Finished done = run(words);
    EXPECT_EQ(done.code, 2) << done.out;
    return done.err;
  };
  EXPECT_THAT(refusal({"sweep", "toy.toml", "--over", "split_sze=1,2"}),
              HasSubstr("recipes have no field 'split_sze'; did you mean 'split_size'?"));
  EXPECT_THAT(refusal(sizes("1,2", {"--set", "micro_batches=4"})),
              AllOf(HasSubstr("'micro_batches' = 4 and 'split_size' = 1"),
                    HasSubstr("at toy · pipeline.split_size = 1")));
  EXPECT_THAT(refusal(sizes("1,2", {"--set", "batch=4,8"})),
              HasSubstr("'batch' in [train] must be an integer"));
  EXPECT_THAT(refusal(sizes("1,2", {"--set", "split_size=4"})),
              HasSubstr("'pipeline.split_size' is given values twice"));
  EXPECT_THAT(refusal({"sweep", "toy.toml", "--set", "batch=4", "--set", "train.batch=8"}),
              HasSubstr("--set train.batch=8: 'train.batch' is given values twice"));
  EXPECT_THAT(refusal({"sweep", "toy.toml", "--runs", "0"}),
              HasSubstr("--runs must be a whole number from 1 to 1000000, not '0'"));
  EXPECT_THAT(refusal({"sweep", "none.toml"}), HasSubstr("none.toml: no such recipe"));
  EXPECT_THAT(refusal({"sweep"}), HasSubstr("sweep needs a RECIPE."));
  EXPECT_FALSE(fs::exists(folder_ / "runs"));
}

TEST_F(SweepVerb, OneSweepAtATimeRunsInFolder) {
  Started first(folder_, sizes("1,2,3,4", {"--json"}, "50"));
  ASSERT_TRUE(first.wait_for("\"done\":1"));
  const Finished second = run(sizes("1,2"));
  EXPECT_EQ(second.code, 1);
  EXPECT_THAT(second.err, HasSubstr("runs/toy_sweep: another sweep uses this folder"));
}

}  // namespace
}  // namespace trestle
