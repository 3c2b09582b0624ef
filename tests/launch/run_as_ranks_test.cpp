// A program that starts itself as ranks.
#include "trestle/launch/run_as_ranks.h"

#include <csignal>

#include "tests/launch/started_launcher.h"
#include "trestle/base/error.h"

namespace trestle::launch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(RunAsRanks, PassesEveryRankTheCommandLine) {
  const Outcome outcome =
      run_launcher({"self", "3", "end", "--flag", "two words", "", "it's \"$HOME\" *", "-n"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  for (const char* const rank : {"[0] rank 0 of 3 pid ", "[1] rank 1 of 3", "[2] rank 2 of 3"})
    EXPECT_EQ(count_of(rank, outcome.out), 1) << outcome.out;
  EXPECT_EQ(count_of(" <--flag> <two words> <> <it's \"$HOME\" *> <-n>\n", outcome.out), 3)
      << outcome.out;
}

TEST(RunAsRanks, ReturnsExitCodeOfFailedRankAndStopsAllOthers) {
  const Outcome outcome = run_launcher({"self", "3", "fail"});
  EXPECT_EQ(outcome.code, 7);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("rank 1 (process "), HasSubstr("exited with code 7"),
                                 HasSubstr("ranks 0, 2 stopped")));
  EXPECT_TRUE(all_gone(processes_in(outcome.out)));
}

TEST(RunAsRanks, PassesSignalsOn) {
  StartedLauncher program({"self", "2", "wait"});
  program.wait_for("rank ", 2);
  program.send(SIGTERM);
  const Outcome outcome = program.wait();
  EXPECT_EQ(outcome.code, 128 + SIGTERM);
  EXPECT_THAT(outcome.err, HasSubstr("SIGTERM"));
  EXPECT_TRUE(all_gone(processes_in(outcome.out)));
}

TEST(RunAsRanks, ContinuesInRankOfLauncher) {
  for (const auto& [ranks, line] : {std::pair("2", "of 2"), std::pair("1", "of 1")}) {
    const Outcome outcome = run_launcher({"-n", ranks, "--", LAUNCH_HELPER, "self", "3", "end"});
    EXPECT_EQ(outcome.code, 0) << outcome.err;
    EXPECT_EQ(count_of(line, outcome.out), std::stoi(ranks)) << outcome.out;
    EXPECT_THAT(outcome.out, Not(HasSubstr("of 3")));
  }
}

TEST(RunAsRanks, ContinuesWithoutLauncherForOneRank) {
  const Outcome outcome = run_launcher({"self", "1", "end"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, ::testing::StartsWith("rank 0 of 1 pid "));
  const Outcome by_hand = run_launcher({"RANK=0 WORLD_SIZE=1 exec " LAUNCH_HELPER " self 3 end"},
                                       {.program = {"/bin/sh", "-c"}});
  EXPECT_THAT(by_hand.out, ::testing::StartsWith("rank 0 of 1 pid "));
}

TEST(RunAsRanks, RefusesInvalidOptions) {
  const Outcome none = run_launcher({"self", "0", "end"});
  EXPECT_EQ(none.code, 2);
  EXPECT_THAT(none.err, HasSubstr("the number of ranks is 0; it must be from 1 to 1000"));
  EXPECT_THROW(run_as_ranks({.program = "./other", .ranks = 2}), UsageError);
  EXPECT_THROW(run_as_ranks({.program = "", .arguments = {"--more"}, .ranks = 2}), UsageError);
}

}  // namespace
}  // namespace trestle::launch
