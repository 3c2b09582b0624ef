// `trestle train --ranks`: processes and threads, stops, resumes, failing ranks.
#include <gmock/gmock.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>

#include "tests/cli/program.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"

namespace trestle {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;

class TrainRanks : public ProgramTest {
 protected:
  // One thread per operator, so that all runs have the same bits.
  static std::vector<std::string> train(const std::string& name,
                                        const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"train",     "small.toml", "--name",    name,
                                      "--devices", "cpu",        "--threads", "1",
                                      "--epochs",  "2",          "--quiet"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }
  // Losses, gradient norms and metrics to the last digit, without times.
  static std::string metrics(const std::string& name) {
    std::string kept;
    for (const std::string& line :
         split(read_file(folder_ / "runs" / name / "metrics.jsonl"), '\n'))
      kept += line.substr(0, std::min(line.find(",\"examples_per_second\""),
                                      line.find(",\"peak_bytes\""))) +
              "\n";
    return kept;
  }
};

TEST_F(TrainRanks, HaveBitsOfOneProcess) {
  ASSERT_EQ(run(train("one")).code, 0);
  for (const std::string ranks : {"2", "threads:2"}) {
    const std::string name = "on_" + ranks.substr(0, 2);
    const Finished done = run(train(name, {"--ranks", ranks}));
    ASSERT_EQ(done.code, 0) << done.err;
    EXPECT_EQ(metrics(name), metrics("one")) << ranks;
    EXPECT_TRUE(fs::exists(folder_ / "runs" / name / "last/weights.rank1.safetensors"));
  }
  const Finished launched =
      run({"launch", "-n", "2", "--prefix", "off", "--", TRESTLE_PROGRAM, "train", "small.toml",
           "--name", "launched", "--devices", "cpu", "--threads", "1", "--epochs", "2", "--quiet"});
  ASSERT_EQ(launched.code, 0) << launched.err;
  EXPECT_EQ(metrics("launched"), metrics("one"));
}

TEST_F(TrainRanks, StopTogetherAndResumeOnOtherNumber) {
  ASSERT_EQ(run(train("whole")).code, 0);
  Started stopped(folder_, {"train", "small.toml", "--name", "part", "--devices", "cpu",
                            "--threads", "1", "--epochs", "2", "--json", "--ranks", "2"});
  ASSERT_TRUE(stopped.wait_for("\"event\":\"step\""));
  stopped.send(SIGINT);
  EXPECT_EQ(stopped.wait().code, 130);
  EXPECT_TRUE(fs::exists(folder_ / "runs/part/last/index.json"));
  const Finished rest = run({"train", "--resume", "runs/part", "--quiet"});
  ASSERT_EQ(rest.code, 0) << rest.err;
  EXPECT_EQ(metrics("part"), metrics("whole"));
}

// One rank prints the prediction and, at the end, the measurement beside it.
TEST_F(TrainRanks, PrintPredictionOnce) {
  for (const std::string ranks : {"2", "threads:2"}) {
    const Finished done = run({"train", "small.toml", "--name", "predicted_" + ranks.substr(0, 2),
                               "--devices", "virtual:2", "--epochs", "3", "--ranks", ranks});
    ASSERT_EQ(done.code, 0) << done.err;
    const std::string predicted = " · predicted ";
    const auto at = done.out.find(predicted);
    ASSERT_NE(at, std::string::npos) << done.out;
    EXPECT_EQ(done.out.find(predicted, at + 1), std::string::npos) << done.out;
    EXPECT_THAT(done.out, ContainsRegex("stage 0 +virtual:0 .*peak at most .*B\n"
                                        "stage 1 +virtual:1 .*peak at most .*B\n"));
    EXPECT_THAT(done.out, ContainsRegex("predicted [^,\n]* per step, [0-9]+ % idle · optimizer "));
    EXPECT_THAT(done.out, ContainsRegex("done .* per step \\(predicted "));
  }
}

TEST_F(TrainRanks, AreRefusedWithHints) {
  const auto refusal = [](const std::vector<std::string>& more) {
    const Finished refused = run(train("refused", more));
    EXPECT_EQ(refused.code, 2) << join(more, " ");
    EXPECT_FALSE(fs::exists(folder_ / "runs/refused"));
    return refused.err;
  };
  EXPECT_THAT(refusal({"--ranks", "0"}), HasSubstr("--ranks takes a number from 1 to 1000"));
  EXPECT_THAT(refusal({"--ranks", "threads:"}), HasSubstr("For example --ranks 4"));
  EXPECT_THAT(refusal({"--ranks", "2", "--dry-run"}), HasSubstr("--ranks"));
  EXPECT_THAT(refusal({"--ranks", "threads:3", "--balance", "2,1"}), HasSubstr("balance"));
}

}  // namespace
}  // namespace trestle
