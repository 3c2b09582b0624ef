#include <gmock/gmock.h>

#include <unistd.h>

#include <csignal>
#include <functional>
#include <iterator>

#include "tests/cli/program.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"

// The program's end: exit codes, signals, unread output, two processes in one folder.
namespace trestle {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

class Endings : public ProgramTest {
 protected:
  // The program's exit code when the reader of its output has exited.
  static Finished run_into_closed_pipe(const std::string& arguments) {
    return run({"-c", "{ sleep 0.3; '" TRESTLE_PROGRAM "' " + arguments +
                          "; echo code $? >&2; } | exec true"},
               {.program = "/bin/sh"});
  }
  // Whether `what` becomes true within a minute.
  static bool comes(const std::function<bool()>& what) {
    for (int tries = 0; tries < 12'000; ++tries) {
      if (what()) return true;
      usleep(5000);
    }
    return false;
  }
  static std::vector<std::string> long_run(const std::string& name) {
    return {"train", "small.toml", "--name", name, "--epochs", "1000", "--json"};
  }
};

TEST_F(Endings, OneProcessAtATimeTrainsInFolder) {
  Started first(folder_, long_run("held"));
  ASSERT_TRUE(first.wait_for("\"event\":\"epoch\""));
  const Finished second = run({"train", "--resume", "runs/held"});
  EXPECT_EQ(second.code, 1);
  EXPECT_THAT(second.err, AllOf(HasSubstr("runs/held: another process is training in this folder"),
                                HasSubstr("Wait until it has ended")));
  const Finished beside = run({"train", "small.toml", "--name", "held", "--epochs", "1"});
  EXPECT_EQ(beside.code, 0) << beside.err;
  EXPECT_THAT(beside.out, HasSubstr("runs/held_2"));
  first.send(SIGKILL);
  EXPECT_EQ(first.wait().code, 128 + SIGKILL);
  Started again(folder_, {"train", "--resume", "runs/held", "--json"});
  EXPECT_TRUE(again.wait_for("\"event\":\"step\"")) << again.wait().err;
}

TEST_F(Endings, OneProcessAtATimeSynthesizesData) {
  const std::vector<std::string> words = {"train",         "small.toml", "--images",
                                          "both/train_hq", "--masks",    "both/train_masks",
                                          "--synthesize",  "1000000"};
  Started first(folder_, words);
  ASSERT_TRUE(first.wait_for("synthesizing data"));
  const Finished second = run(words);
  EXPECT_EQ(second.code, 1);
  EXPECT_THAT(second.err, HasSubstr("both-synthetic: another process is creating these data"));
}

TEST_F(Endings, UnwritableOutputIsFailure) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--help"},
                                             {"--version"},
                                             {"doctor"},
                                             {"view", "--schedule", "gpipe"},
                                             {"train", "small.toml", "--dry-run"},
                                             {"data", "check", "carvana", "--images",
                                              "cars/train_hq", "--masks", "cars/train_masks"}}) {
    const Finished finished = run(words, {.out = "/dev/full"});
    EXPECT_EQ(finished.code, 1) << words[0];
    EXPECT_EQ(finished.err, "trestle: the output could not be written: No space left on device\n");
  }
}

TEST_F(Endings, RunWithUnwritableOutputSavesAndStops) {
  std::vector<std::string> words = long_run("unheard");
  const Finished finished = run(words, {.out = "/dev/full"});
  EXPECT_EQ(finished.code, 1);
  EXPECT_THAT(finished.err, HasSubstr("Resume it: trestle train --resume runs/unheard"));
  EXPECT_TRUE(fs::exists(folder_ / "runs/unheard/last/index.json"));
}

TEST_F(Endings, ClosedPipeEndsProgramQuietly) {
  for (const char* words :
       {"view --schedule gpipe", "doctor", "--help", "train small.toml --name piped --epochs 1000"})
    EXPECT_EQ(run_into_closed_pipe(words).err, "code 1\n") << words;
  EXPECT_TRUE(fs::exists(folder_ / "runs/piped/last/index.json"));
}

TEST_F(Endings, SignalDeterminesExitCode) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    Started training(folder_, long_run("signalled"));
    ASSERT_TRUE(training.wait_for("\"event\":\"step\""));
    training.send(signal);
    const Finished finished = training.wait();
    EXPECT_EQ(finished.code, 128 + signal);
    EXPECT_THAT(finished.out, HasSubstr("\"finished\":false"));
  }
}

// As `nohup` starts it.
TEST_F(Endings, IgnoredHangUpStaysIgnored) {
  const Finished finished =
      run({"-c", "trap '' HUP; '" TRESTLE_PROGRAM
                 "' train small.toml --name unhung --epochs 8 --quiet & sleep 0.5; "
                 "kill -HUP $!; wait $!"},
          {.program = "/bin/sh"});
  EXPECT_EQ(finished.code, 0) << finished.err;
}

// A signal during synthesis leaves no data, and the next run synthesizes its own.
TEST_F(Endings, SignalDuringSynthesisLeavesNothing) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    for (const bool training : {true, false}) {
      SCOPED_TRACE(text(signal, " ", training));
      std::vector<std::string> words = {
          "data",    "synthesize", "carvana",  "--count", "1000000", "--out", "later-synthetic",
          "--width", "48",         "--height", "32"};
      if (training)
        words = {"train",   "small.toml",        "--images",     "later/train_hq",
                 "--masks", "later/train_masks", "--synthesize", "1000000"};
      Started making(folder_, words);
      // The program handles signals from the end of the first example on; wait for the second.
      const fs::path masks = folder_ / ".later-synthetic.making/train_masks";
      ASSERT_TRUE(comes([&] {
        return fs::exists(masks) && std::distance(fs::directory_iterator(masks), {}) > 1;
      }));
      making.send(signal);
      const Finished finished = making.wait();
      EXPECT_EQ(finished.code, 128 + signal);
      EXPECT_THAT(finished.err, AllOf(HasSubstr("stopping, and removing the incomplete data"),
                                      HasSubstr("stopped synthesizing data after "),
                                      HasSubstr(" of 1000000 examples: nothing was kept"),
                                      Not(HasSubstr("saving"))));
      for (const auto& entry : fs::directory_iterator(folder_))
        EXPECT_THAT(entry.path().filename().string(), Not(HasSubstr("later")));
    }
  }
  EXPECT_EQ(run({"train", "small.toml", "--images", "later/train_hq", "--masks",
                 "later/train_masks", "--synthesize", "16", "--epochs", "1", "--quiet"})
                .code,
            0);
}

// The same after a synthesis.
TEST_F(Endings, SignalBeforeFirstStepStopsAtOnce) {
  Started planning(
      folder_, {"train", "small.toml", "--images", "soon/train_hq", "--masks", "soon/train_masks",
                "--synthesize", "16", "--synthesize-width", "256", "--synthesize-height", "256",
                "--width", "64", "--devices", "cpu", "--name", "too_early"});
  ASSERT_TRUE(planning.wait_for("synthesizing data"));
  ASSERT_TRUE(comes([&] { return fs::exists(folder_ / "soon-synthetic"); }));
  planning.send(SIGTERM);
  const Finished finished = planning.wait();
  EXPECT_EQ(finished.code, 143);
  EXPECT_THAT(finished.err, AllOf(HasSubstr("trestle: stopped"), Not(HasSubstr("saving"))));
  EXPECT_FALSE(fs::exists(folder_ / "runs/too_early"));
}

TEST_F(Endings, HelpListsExitCodes) {
  for (const std::vector<std::string>& words :
       std::vector<std::vector<std::string>>{{"--help"}, {"train", "--help"}})
    EXPECT_THAT(run(words).out, HasSubstr("Exit codes: 0 success; 1 failure; 2 invalid request"));
}

}  // namespace
}  // namespace trestle
