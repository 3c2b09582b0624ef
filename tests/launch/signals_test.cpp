// Signals to the launcher.
#include <pty.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <thread>

#include "tests/launch/started_launcher.h"
#include "trestle/base/text.h"

namespace trestle::launch {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A script that counts signals for a while after the first one and exits normally.
std::string counting(const std::string& signal) {
  return text("n=0; trap 'n=$((n+1)); echo got ", signal, "' ", signal,
              "; echo ready; while [ $n = 0 ]; do sleep 0.02; done; "
              "for i in 1 2 3 4 5; do sleep 0.05; done; echo in all $n");
}

TEST(LaunchSignals, ReachEachRankOnce) {
  for (const auto& [name, number] :
       {std::pair("INT", SIGINT), std::pair("TERM", SIGTERM), std::pair("HUP", SIGHUP),
        std::pair("QUIT", SIGQUIT), std::pair("USR1", SIGUSR1), std::pair("USR2", SIGUSR2)}) {
    StartedLauncher launcher(on_ranks(2, counting(name)));
    launcher.wait_for("ready", 2);
    launcher.send(number);
    const Outcome outcome = launcher.wait();
    EXPECT_EQ(outcome.code, 0) << name << outcome.err;
    EXPECT_EQ(count_of("in all 1\n", outcome.out), 2) << name << outcome.out;
  }
}

TEST(LaunchSignals, CtrlCOnTerminalArrivesOnce) {
  const Words words = on_ranks(2, counting("INT"));
  std::vector<std::string> all = {LAUNCH_HELPER};
  all.insert(all.end(), words.begin(), words.end());
  std::vector<char*> argv;
  for (std::string& word : all) argv.push_back(word.data());
  argv.push_back(nullptr);
  int terminal = -1;
  const pid_t child = forkpty(&terminal, nullptr, nullptr, nullptr);
  if (child == 0) {
    execv(argv[0], argv.data());
    _exit(127);
  }
  std::string seen;
  bool sent = false;
  char piece[4096];
  for (ssize_t got = 0; (got = ::read(terminal, piece, sizeof piece)) > 0;) {
    seen.append(piece, static_cast<std::size_t>(got));
    if (sent || count_of("ready", seen) < 2) continue;
    sent = true;
    ASSERT_EQ(write(terminal, "\x03", 1), 1);
  }
  close(terminal);
  int status = -1;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0) << seen;
  EXPECT_EQ(count_of("in all 1", seen), 2) << seen;
}

TEST(LaunchSignals, DetermineExitCode) {
  for (const auto& [number, code] : {std::pair(SIGINT, 130), std::pair(SIGTERM, 143)}) {
    StartedLauncher launcher(on_ranks(3, "echo ready; exec sleep 60", {"--max-restarts", "3"}));
    launcher.wait_for("ready", 3);
    launcher.send(number);
    const Outcome outcome = launcher.wait();
    EXPECT_EQ(outcome.code, code);
    EXPECT_THAT(outcome.err, AllOf(HasSubstr("passed on to all ranks"),
                                   Not(HasSubstr("was killed")), Not(HasSubstr("again"))));
    EXPECT_EQ(count_of("ready", outcome.out), 3);
  }
}

TEST(LaunchSignals, RanksMayStopSlowly) {
  StartedLauncher launcher(
      on_ranks(2,
               "trap 'sleep 0.$((RANK * 7)); echo saved; exit 130' INT; echo ready; "
               "while :; do sleep 0.02; done",
               {"--notice-ms", "10", "--grace-ms", "10"}));
  launcher.wait_for("ready", 2);
  launcher.send(SIGINT);
  const Outcome outcome = launcher.wait();
  EXPECT_EQ(outcome.code, 130);
  EXPECT_EQ(count_of("saved", outcome.out), 2) << outcome.out << outcome.err;
}

TEST(LaunchSignals, SecondSignalKills) {
  StartedLauncher launcher(
      on_ranks(2, "trap 'echo got' INT; echo pid $$; echo ready; while :; do sleep 0.02; done"));
  launcher.wait_for("ready", 2);
  launcher.send(SIGINT);
  launcher.wait_for("got", 2);
  std::this_thread::sleep_for(std::chrono::milliseconds(400));
  launcher.send(SIGINT);
  const Outcome outcome = launcher.wait();
  EXPECT_EQ(outcome.code, 130);
  EXPECT_THAT(outcome.err, HasSubstr("second signal, 2 (SIGINT): killing all ranks"));
  EXPECT_TRUE(all_gone(processes_in(outcome.out)));
}

// As `timeout` does: to its child, and then to the group.
TEST(LaunchSignals, ASignalToProcessAndGroupIsOne) {
  StartedLauncher launcher(on_ranks(2,
                                    "trap 'sleep 0.2; echo saved; exit 143' TERM; echo ready; "
                                    "while :; do sleep 0.02; done"));
  launcher.wait_for("ready", 2);
  launcher.send(SIGTERM);
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  launcher.send(SIGTERM);
  const Outcome outcome = launcher.wait();
  EXPECT_EQ(outcome.code, 143);
  EXPECT_EQ(count_of("saved", outcome.out), 2) << outcome.out << outcome.err;
}

TEST(LaunchSignals, FailureWhileStoppingIsFailure) {
  StartedLauncher launcher(
      on_ranks(2, "trap 'exit $((RANK * 4 + 3))' INT; echo ready; while :; do sleep 0.02; done",
               {"--max-restarts", "1"}));
  launcher.wait_for("ready", 2);
  launcher.send(SIGINT);
  const Outcome outcome = launcher.wait();
  EXPECT_TRUE(outcome.code == 3 || outcome.code == 7) << outcome.code;
  EXPECT_THAT(outcome.err, AllOf(HasSubstr("exited with code"), Not(HasSubstr("Restarting"))));
}

TEST(LaunchSignals, IgnoredSignalStaysIgnored) {
  // As under nohup: the launcher and its ranks continue.
  StartedLauncher launcher({text("trap '' HUP; exec ", LAUNCH_HELPER,
                                 " -n 2 -- sh -c 'kill -HUP $$; echo ready; sleep 0.5; echo end'")},
                           {.program = {"/bin/sh", "-c"}});
  launcher.wait_for("ready", 2);
  launcher.send(SIGHUP);
  const Outcome outcome = launcher.wait();
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(count_of("end", outcome.out), 2);
}

TEST(LaunchSignals, KilledLauncherLeavesNoRank) {
  // The shells and their children, including background ones.
  StartedLauncher launcher(on_ranks(
      2, "trap '' TERM INT HUP; sleep 1000 & echo pid $!; echo pid $$; sleep 1000; echo never"));
  launcher.wait_for("pid", 4);
  const auto processes = processes_in(launcher.out());
  ASSERT_EQ(processes.size(), 4u);
  for (const pid_t process : processes) EXPECT_TRUE(is_alive(process));
  launcher.send(SIGKILL);
  EXPECT_TRUE(all_gone(processes));
  EXPECT_EQ(launcher.wait().code, 137);
}

char state_of(pid_t process) {
  std::ifstream file(text("/proc/", process, "/stat"));
  std::string stat;
  std::getline(file, stat);
  const auto at = stat.rfind(')');
  return at == std::string::npos ? '-' : stat.at(at + 2);
}

bool comes_to(pid_t process, char state) {
  for (int i = 0; i < 1000 && state_of(process) != state; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  return state_of(process) == state;
}

TEST(LaunchSignals, CtrlZStopsRanksAndContinueResumesThem) {
  StartedLauncher launcher(on_ranks(1, "echo pid $$; exec sleep 0.7"));
  launcher.wait_for("pid", 1);
  const auto rank = processes_in(launcher.out()).at(0);
  launcher.send(SIGTSTP);
  EXPECT_TRUE(comes_to(rank, 'T'));
  EXPECT_TRUE(comes_to(launcher.process(), 'T'));
  launcher.send(SIGCONT);
  EXPECT_EQ(launcher.wait().code, 0);
}

}  // namespace
}  // namespace trestle::launch
