// `trestle launch --nodes 2`: the launchers of two machines, here on one. Each case is one that the
// second machine has and the first one cannot see; both must end at once, with the reason.
#include <gmock/gmock.h>

#include <csignal>
#include <filesystem>
#include <memory>
#include <thread>

#include "tests/cli/program.h"
#include "trestle/base/files.h"
#include "trestle/base/stopwatch.h"
#include "trestle/base/text.h"

namespace trestle {
namespace {

namespace fs = std::filesystem;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

class TrainNodes : public ProgramTest {
 protected:
  static void SetUpTestSuite() {
    ProgramTest::SetUpTestSuite();
    fs::create_directories(folder_ / "other");
    for (const fs::path& place : {folder_, folder_ / "other"})
      write_file(place / "tiny.toml", two_linears_recipe);
  }

  // The launcher of one machine, with the program's words behind "--".
  static std::unique_ptr<Started> node(int number, const Words& command, Words flags = {},
                                       const fs::path& folder = folder_) {
    Words words = {"launch",       "--nodes",        "2", "--node-rank", text(number),
                   "--rendezvous", "127.0.0.1:29614"};
    words.insert(words.end(), flags.begin(), flags.end());
    words.push_back("--");
    words.insert(words.end(), command.begin(), command.end());
    return std::make_unique<Started>(folder, words);
  }

  static Words train(const Words& more) {
    Words words = {TRESTLE_PROGRAM, "train"};
    words.insert(words.end(), more.begin(), more.end());
    return words;
  }

  // Waits until the first machine's rank waits in the rendezvous.
  static void let_first_wait() { std::this_thread::sleep_for(std::chrono::seconds(3)); }
};

TEST_F(TrainNodes, FolderThatOneMachineLacksEndsBoth) {
  ASSERT_EQ(run({"train", "tiny.toml", "--name", "whole", "--quiet"}).code, 0);
  const Words resume = train({"--resume", "runs/whole", "--epochs", "3", "--quiet"});
  for (const int lacking : {0, 1}) {
    const Stopwatch watch;
    const auto first = node(0, resume, {}, lacking == 0 ? folder_ / "other" : folder_);
    const auto second = node(1, resume, {}, lacking == 1 ? folder_ / "other" : folder_);
    const Finished one = first->wait(), other = second->wait();
    EXPECT_LT(watch.seconds(), 15);
    EXPECT_EQ(one.code, 2) << one.err;
    EXPECT_EQ(other.code, 2) << other.err;
    for (const Finished& done : {one, other}) EXPECT_THAT(done.err, HasSubstr("runs/whole"));
    const Finished& told = lacking == 0 ? other : one;
    EXPECT_THAT(told.err, HasSubstr(text("rank ", lacking, " on ")));
    EXPECT_THAT(told.err, HasSubstr(" cannot start: runs/whole"));
  }
}

TEST_F(TrainNodes, UnknownFlagOnOneMachineEndsBoth) {
  const Stopwatch watch;
  const auto first = node(0, train({"tiny.toml", "--mesh", "replicate=2", "--quiet"}));
  const auto second = node(1, train({"tiny.toml", "--mesh", "replicate=2", "--quiet", "--bogus"}));
  const Finished one = first->wait(), other = second->wait();
  EXPECT_LT(watch.seconds(), 15);
  EXPECT_EQ(one.code, 2) << one.err;
  EXPECT_EQ(other.code, 2) << other.err;
  for (const Finished& done : {one, other}) EXPECT_THAT(done.err, HasSubstr("--bogus"));
}

// A program that does not use trestle may end before its ranks meet.
TEST_F(TrainNodes, UsedUpRestartsOfOneMachineEndBoth) {
  const Words waits = train({"tiny.toml", "--mesh", "replicate=2", "--quiet"});
  const Stopwatch watch;
  const auto first = node(0, waits, {"--max-restarts", "3"});
  let_first_wait();
  const Finished other = node(1, {"sh", "-c", "exit 5"}, {"--max-restarts", "1"})->wait();
  EXPECT_EQ(other.code, 5) << other.err;
  const Finished one = first->wait();
  EXPECT_LT(watch.seconds(), 15);
  EXPECT_NE(one.code, 0);
  EXPECT_THAT(one.err, HasSubstr("exited with code 5"));
  EXPECT_THAT(one.err, AllOf(HasSubstr("It is not restarted: rank 1 (process "),
                             Not(HasSubstr("Restarting all ranks"))));
}

TEST_F(TrainNodes, EndOfFirstMachineEndsWaitOfSecond) {
  const auto second =
      node(1, train({"tiny.toml", "--mesh", "replicate=2", "--quiet"}), {"--max-restarts", "3"});
  let_first_wait();
  const Finished one = node(0, {"sh", "-c", "exit 5"})->wait();
  EXPECT_EQ(one.code, 5) << one.err;
  const Stopwatch watch;
  const Finished other = second->wait();
  EXPECT_LT(watch.seconds(), 5);
  EXPECT_THAT(other.err, HasSubstr("rank 0 (process "));
  EXPECT_THAT(other.err, HasSubstr("exited with code 5"));
}

TEST_F(TrainNodes, InterruptOfOneMachineEndsWaitOfOther) {
  const auto first =
      node(0, train({"tiny.toml", "--mesh", "replicate=2", "--quiet"}), {"--max-restarts", "3"});
  let_first_wait();
  const auto second = node(1, {"sleep", "60"}, {"--max-restarts", "3"});
  std::this_thread::sleep_for(std::chrono::seconds(1));
  const Stopwatch watch;
  second->send(SIGINT);
  EXPECT_EQ(second->wait().code, 130);
  const Finished one = first->wait();
  EXPECT_LT(watch.seconds(), 8);
  EXPECT_THAT(one.err, HasSubstr("signal 2 (SIGINT) stopped the launcher on "));
  EXPECT_THAT(one.err, Not(HasSubstr("Restarting all ranks")));
}

// The ranks stop together and save; the other launcher must not start them again.
TEST_F(TrainNodes, InterruptOfOneMachineDuringRunStopsBoth) {
  const Words runs = train(
      {"tiny.toml", "--mesh", "replicate=2", "--name", "stopped", "--epochs", "1000000", "--json"});
  const auto first = node(0, runs, {"--max-restarts", "3"});
  const auto second = node(1, runs, {"--max-restarts", "3"});
  EXPECT_TRUE(first->wait_for("\"step\""));
  second->send(SIGINT);
  const Finished one = first->wait(), other = second->wait();
  EXPECT_EQ(one.code, 130) << one.err;
  EXPECT_EQ(other.code, 130) << other.err;
  EXPECT_THAT(one.err, Not(HasSubstr("Restarting all ranks")));
}

// An error that both find is on both terminals, once on each.
TEST_F(TrainNodes, BothTerminalsShowTheReason) {
  for (const int other_batch : {0, 1}) {
    const auto batch = [&](int number) {
      return train({"tiny.toml", "--mesh", "replicate=2", "--quiet", "--batch",
                    number == other_batch ? "10" : "20"});
    };
    const auto first = node(0, batch(0)), second = node(1, batch(1));
    for (const Finished& done : {first->wait(), second->wait()}) {
      EXPECT_EQ(done.code, 2) << done.err;
      EXPECT_THAT(done.err, HasSubstr("the ranks have different recipes"));
    }
  }
}

TEST_F(TrainNodes, OneNodeRankTwiceIsRefused) {
  const Words runs = train({"tiny.toml", "--mesh", "replicate=3", "--quiet"});
  const auto start = [&](const char* number) {
    Words words = {"launch",       "--nodes",         "3", "--node-rank", number,
                   "--rendezvous", "127.0.0.1:29615", "--"};
    words.insert(words.end(), runs.begin(), runs.end());
    return std::make_unique<Started>(folder_, words);
  };
  const auto first = start("0"), second = start("1"), third = start("1");
  for (const Finished& done : {first->wait(), second->wait(), third->wait()}) {
    EXPECT_EQ(done.code, 2) << done.err;
    EXPECT_THAT(done.err,
                AllOf(HasSubstr("two processes have the rank number 1"), HasSubstr("--node-rank")));
  }
}

}  // namespace
}  // namespace trestle
