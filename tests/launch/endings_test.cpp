// The end of one rank, and its effect on the other ranks.
#include <csignal>

#include "tests/launch/started_launcher.h"

namespace trestle::launch {
namespace {

using ::testing::AllOf;
using ::testing::ContainsRegex;
using ::testing::HasSubstr;
using ::testing::Not;

TEST(LaunchEndings, SuccessOfAllRanksIsSuccess) {
  const Outcome outcome = run_launcher(on_ranks(3, "sleep 0.$RANK"));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.err, "");
}

TEST(LaunchEndings, AllowsRankToEndEarly) {
  const Outcome outcome = run_launcher(
      on_ranks(2, "[ $RANK = 0 ] && exit 0; sleep 0.5; echo still here", {"--notice-ms", "10"}));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("[1] still here"));
}

TEST(LaunchEndings, ReturnsFirstExitCode) {
  const Outcome outcome =
      run_launcher(on_ranks(3, "[ $RANK = 1 ] && exit 37; sleep 60", {"--notice-ms", "100"}));
  EXPECT_EQ(outcome.code, 37);
  EXPECT_LT(outcome.seconds, 5);
  EXPECT_THAT(
      outcome.err,
      ContainsRegex("^trestle: rank 1 \\(process [0-9]+\\) exited with code 37, .* after its "
                    "start; ranks 0, 2 stopped after [0-9.]+ m?s\\.\n$"));
}

TEST(LaunchEndings, PrintsOutputOfStoppingRanks) {
  const Outcome outcome =
      run_launcher(on_ranks(2, "[ $RANK = 1 ] && exit 3; sleep 0.3; echo rank 1 has gone; exit 9"));
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(outcome.out, HasSubstr("[0] rank 1 has gone"));
  EXPECT_THAT(outcome.err, HasSubstr("; rank 0 stopped after "));
}

TEST(LaunchEndings, NamesSignalThatKilledRank) {
  const Outcome outcome =
      run_launcher(on_ranks(4, "[ $RANK = 2 ] && kill -9 $$; sleep 60", {"--notice-ms", "100"}));
  EXPECT_EQ(outcome.code, 137);
  EXPECT_LT(outcome.seconds, 5);
  EXPECT_THAT(
      outcome.err,
      AllOf(ContainsRegex("rank 2 \\(process [0-9]+\\) was killed by signal 9 \\(SIGKILL\\)"),
            HasSubstr("; ranks 0, 1, 3 stopped after "), HasSubstr("out of memory")));
  EXPECT_EQ(run_launcher(on_ranks(1, "kill -SEGV $$")).code, 139);
}

TEST(LaunchEndings, KillsRankThatDoesNotStop) {
  const Outcome outcome = run_launcher(
      on_ranks(3,
               "[ $RANK = 1 ] && exit 1; [ $RANK = 2 ] && exec sleep 60; trap '' TERM; "
               "echo pid $$; while :; do sleep 0.1; done",
               {"--notice-ms", "100", "--grace-ms", "500"}));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_LT(outcome.seconds, 6);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("; rank 2 stopped after"),
                                 HasSubstr("; rank 0 did not stop within 500 ms and was killed.")));
  EXPECT_TRUE(all_gone(processes_in(outcome.out)));
}

TEST(LaunchEndings, EndsRankStoppedBySigstop) {
  const Outcome outcome =
      run_launcher(on_ranks(2, "[ $RANK = 1 ] && sleep 0.3 && exit 1; kill -STOP $$; sleep 60",
                            {"--notice-ms", "100", "--grace-ms", "20000"}));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_LT(outcome.seconds, 6);
}

// Regression: the launcher waited forever for a rank that stopped after the other ranks' end.
TEST(LaunchEndings, ContinuesLastRankStoppedBySigstop) {
  const Outcome outcome =
      run_launcher(on_ranks(3, "[ $RANK = 1 ] || exit 0; kill -STOP $$; echo went on"));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_LT(outcome.seconds, 12);
  EXPECT_THAT(outcome.out, HasSubstr("[1] went on"));
  EXPECT_THAT(
      outcome.err,
      ContainsRegex("rank 1 \\(process [0-9]+\\) is stopped and all other ranks have ended"));
}

TEST(LaunchEndings, KillsAtOnceWithoutGrace) {
  const Outcome outcome =
      run_launcher(on_ranks(2, "trap '' TERM; [ $RANK = 1 ] && exit 1; while :; do sleep 0.1; done",
                            {"--notice-ms", "0", "--grace-ms", "0"}));
  EXPECT_EQ(outcome.code, 1);
  EXPECT_LT(outcome.seconds, 4);
}

TEST(LaunchEndings, RestartsUntilSuccess) {
  const Outcome outcome = run_launcher(on_ranks(
      2,
      "echo try $TORCHELASTIC_RESTART_COUNT of $TORCHELASTIC_MAX_RESTARTS port $MASTER_PORT; "
      "[ $TORCHELASTIC_RESTART_COUNT = 2 ] || [ $RANK = 0 ] || exit 5",
      {"--max-restarts", "3"}));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(count_of("[1] try 2 of 3", outcome.out), 1);
  EXPECT_EQ(count_of("try 3", outcome.out), 0);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("exited with code 5"),
                                 HasSubstr("Restarting all ranks (restart 1 of 3)."),
                                 HasSubstr("Restarting all ranks (restart 2 of 3).")));
}

TEST(LaunchEndings, LimitsRestarts) {
  const Outcome outcome = run_launcher(on_ranks(2, "echo try; exit 5", {"--max-restarts", "2"}));
  EXPECT_EQ(outcome.code, 5);
  EXPECT_EQ(count_of("try", outcome.out), 6);
}

TEST(LaunchEndings, DoesNotRestartUsageErrors) {
  const Outcome outcome = run_launcher(on_ranks(1, "echo try; exit 2", {"--max-restarts", "2"}));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(count_of("try", outcome.out), 1);
}

// Every rank has printed it.
TEST(LaunchEndings, NamesNoFirstRankWhenAllHaveUsageErrors) {
  const Outcome outcome = run_launcher(on_ranks(3, "sleep 0.$RANK; echo no such flag >&2; exit 2"));
  EXPECT_EQ(outcome.code, 2);
  EXPECT_EQ(count_of("no such flag", outcome.err), 3);
  EXPECT_EQ(count_of("trestle:", outcome.err), 0) << outcome.err;
  const Outcome one = run_launcher(on_ranks(2, "[ $RANK = 0 ] || exit 2; sleep 0.2; exit 1"));
  EXPECT_EQ(one.code, 2);
  EXPECT_THAT(one.err, HasSubstr("rank 1 (process "));
}

TEST(LaunchEndings, EndsGrandchildThatHoldsPipe) {
  const Outcome outcome =
      run_launcher(on_ranks(2, "sleep 1000 & echo pid $!; echo done", {"--notice-ms", "10"}));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_LT(outcome.seconds, 10);
  EXPECT_EQ(count_of("done", outcome.out), 2);
  ASSERT_EQ(processes_in(outcome.out).size(), 2u);
  EXPECT_TRUE(all_gone(processes_in(outcome.out)));
}

TEST(LaunchEndings, DoesNotWaitForDetachedGrandchild) {
  // It keeps writing faster than the launcher reads.
  const Outcome outcome = run_launcher(on_ranks(1,
                                                "setsid sh -c 'echo pid $$; trap \"\" PIPE; while "
                                                ":; do echo x 2>/dev/null; done' & sleep 0.3"));
  EXPECT_EQ(outcome.code, 0);
  // It takes up to 4 MiB of such lines, which takes 10 s with sanitizers beside other tests.
  EXPECT_LT(outcome.seconds, 30);
  for (const pid_t process : processes_in(outcome.out)) kill(-process, SIGKILL);
}

TEST(LaunchEndings, PrintsLastOutputOfHelpers) {
  const Outcome outcome = run_launcher(on_ranks(1, "(sleep 0.1; echo last words) & exit 0"));
  EXPECT_THAT(outcome.out, HasSubstr("[0] last words"));
}

Words on_two_nodes(const std::string& script, const Words& more = {"--max-restarts", "3"}) {
  Words flags = {"--nodes", "2", "--node-rank", "0", "--rendezvous", "127.0.0.1:29613"};
  flags.insert(flags.end(), more.begin(), more.end());
  return on_ranks(1, script, flags);
}

// Its ranks were told by another machine's launcher.
TEST(LaunchEndings, DoesNotRestartOnceAnotherMachineHasEnded) {
  const Outcome outcome =
      run_launcher(on_two_nodes("echo try; echo 'end it is out of memory' >$TRESTLE_LAUNCH_NOTES; "
                                "exit 5"));
  EXPECT_EQ(outcome.code, 5);
  EXPECT_EQ(count_of("try", outcome.out), 1);
  EXPECT_THAT(outcome.err, HasSubstr("It is not restarted: it is out of memory."));
}

// The ranks of the other machines have failed at their deadline.
TEST(LaunchEndings, ResumesARankThatIsStoppedForLongSoThatItEnds) {
  const Outcome outcome = run_launcher(
      on_two_nodes("echo deadline 300 >$TRESTLE_LAUNCH_NOTES; kill -STOP $$; echo runs; exit 5",
                   {"--notice-ms", "3000"}));
  EXPECT_EQ(outcome.code, 5);
  EXPECT_THAT(outcome.out, HasSubstr("runs"));
  EXPECT_THAT(outcome.err, HasSubstr("the other ranks wait 300 ms for it"));
  EXPECT_GT(outcome.seconds, 2.3);
}

TEST(LaunchEndings, KillsARankThatStaysStopped) {
  const Outcome outcome =
      run_launcher(on_two_nodes("trap '' TERM; echo deadline 100 >$TRESTLE_LAUNCH_NOTES; "
                                "while :; do kill -STOP $$; done",
                                {"--notice-ms", "100", "--grace-ms", "300"}));
  EXPECT_EQ(outcome.code, 128 + SIGKILL);
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("was killed by signal 9"), Not(HasSubstr("memory"))));
}

TEST(LaunchEndings, CountsRestartsOfOtherMachines) {
  const Outcome outcome =
      run_launcher(on_two_nodes("echo try; [ $TORCHELASTIC_RESTART_COUNT = 0 ] && echo restart 2 "
                                ">$TRESTLE_LAUNCH_NOTES; exit 5"));
  EXPECT_EQ(outcome.code, 5);
  EXPECT_EQ(count_of("try", outcome.out), 2);
  EXPECT_THAT(outcome.err, HasSubstr("(restart 3 of 3)"));
}

}  // namespace
}  // namespace trestle::launch
