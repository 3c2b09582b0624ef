// Processes that are killed, stopped or exit while other ranks wait for them.
#include <gtest/gtest.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <torch/torch.h>
#include <unistd.h>

#include <iostream>
#include <set>
#include <thread>

#include "tests/support/run_ranks.h"
#include "trestle/base/error.h"
#include "trestle/comm/rank_error.h"

namespace trestle::testing {
namespace {

using namespace std::chrono_literals;
using std::chrono::steady_clock;

// Each of three ranks waits: in a collective, for a live rank, and for the failing rank. The
// failing rank runs `harm` after 700 ms. Prints the error that came.
void wait_for_harm(int at_fault, const std::function<void()>& harm,
                   std::chrono::milliseconds deadline) {
  World world = init({.deadline = deadline});
  const comm::Group& group = world.group();
  group.barrier();
  world.report_status("forward 3");
  const auto begin = steady_clock::now();
  if (world.rank() == at_fault) {
    std::this_thread::sleep_for(700ms);  // until other ranks have received the status
    harm();
    return;
  }
  at::Tensor tensor = torch::ones({1 << 20});
  const int one = at_fault == 0 ? 1 : 0, other = at_fault == 3 ? 2 : 3;
  try {
    if (world.rank() == one)
      group.receive(tensor, other, 1).wait();
    else if (world.rank() == other)
      group.with_check(comm::Check::Off).send(tensor, at_fault, 2).wait();
    else
      group.all_reduce(tensor).wait();
    std::cout << "no error\n";
  } catch (const RankError& error) {
    std::cout << "rank error: " << error.what() << '\n';
  } catch (const DeadlineError& error) {
    std::cout << "deadline: " << error.what() << '\n';
  }
  const auto after =
      std::chrono::duration_cast<std::chrono::milliseconds>(steady_clock::now() - begin);
  EXPECT_LT(after, 700ms + (deadline < 5s ? deadline + 1s : 1s));
  EXPECT_THROW(group.barrier(), RankError);
}

void expect_others_say(const std::vector<RankProcess>& processes, int at_fault,
                       const std::string& words) {
  for (int rank = 0; rank < static_cast<int>(processes.size()); ++rank) {
    if (rank == at_fault) continue;
    const RankProcess& process = processes[static_cast<std::size_t>(rank)];
    EXPECT_EQ(process.exit_code, 0) << process.output;
    EXPECT_NE(process.output.find(words), std::string::npos)
        << "rank " << rank << ": " << process.output;
    // libtorch's store meets the same failure but must not print it.
    for (const std::string noise : {"[c10d]", "frame #", "waitForInput"})
      EXPECT_EQ(process.output.find(noise), std::string::npos) << process.output;
  }
}

class FailingProcess : public ::testing::TestWithParam<int> {};

TEST_P(FailingProcess, KilledRankIsNamedWithinOneSecond) {
  const int at_fault = GetParam();
  const auto processes = run_rank_processes(4, [&] {
    wait_for_harm(
        at_fault, [] { raise(SIGKILL); }, 30s);
  });
  EXPECT_EQ(processes[static_cast<std::size_t>(at_fault)].signal, SIGKILL);
  expect_others_say(processes, at_fault,
                    "rank error: rank " + std::to_string(at_fault) + " (process ");
  expect_others_say(processes, at_fault, "last reported 'forward 3'");
}

TEST_P(FailingProcess, StoppedRankIsNamedAtDeadline) {
  const int at_fault = GetParam();
  const auto processes = run_rank_processes(4, [&] {
    wait_for_harm(
        at_fault, [] { raise(SIGSTOP); }, 2s);
  });
  EXPECT_TRUE(processes[static_cast<std::size_t>(at_fault)].was_stopped);
  expect_others_say(processes, at_fault, "rank " + std::to_string(at_fault));
  expect_others_say(processes, at_fault, "has sent no heartbeat for");
}

// The rank destroys its World and exits normally.
TEST_P(FailingProcess, LeavingRankIsNamedWithinOneSecond) {
  const int at_fault = GetParam();
  const auto processes = run_rank_processes(4, [&] {
    wait_for_harm(
        at_fault, [] {}, 30s);
  });
  EXPECT_EQ(processes[static_cast<std::size_t>(at_fault)].exit_code, 0);
  const std::string left = "rank error: rank " + std::to_string(at_fault) +
                           " has left, having last reported 'forward 3', but rank ";
  expect_others_say(processes, at_fault, left);
  expect_others_say(processes, at_fault, " waits for it in ");
}

// The other ranks have given up when the rank resumes; if it is rank 0, its store was stopped too.
TEST_P(FailingProcess, RankResumedAfterDeadlineNamesItself) {
  const int at_fault = GetParam();
  const auto processes = run_rank_processes(4, [&] {
    World world = init({.deadline = 2s});
    const comm::Group& group = world.group();
    const auto numbers = group.all_gather_bytes(std::to_string(getpid()));
    world.report_status("forward 3");
    std::this_thread::sleep_for(500ms);
    if (world.rank() == at_fault) raise(SIGSTOP);
    at::Tensor tensor = torch::ones({4});
    try {
      if (at_fault == 0 && world.rank() < 2)
        group.receive(tensor, 1 - world.rank()).wait();
      else
        group.all_reduce(tensor).wait();
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      std::cout << "error: " << error.what() << '\n';
    }
    if (world.rank() == 2) {
      std::this_thread::sleep_for(500ms);
      kill(std::stoi(numbers[static_cast<std::size_t>(at_fault)]), SIGCONT);
    }
  });
  const auto& own = processes[static_cast<std::size_t>(at_fault)];
  EXPECT_TRUE(own.was_stopped);
  EXPECT_EQ(own.exit_code, 0) << own.output;
  EXPECT_NE(own.output.find("error: rank " + std::to_string(at_fault) + " (process "),
            std::string::npos)
      << own.output;
  EXPECT_NE(own.output.find(") did not run for "), std::string::npos) << own.output;
  expect_others_say(processes, at_fault, "has sent no heartbeat for");
}

INSTANTIATE_TEST_SUITE_P(Ranks, FailingProcess, ::testing::Values(0, 3));

TEST(FailingProcesses, SilentExitIsReported) {
  const auto processes = run_rank_processes(4, [&] {
    wait_for_harm(
        2, [] { _exit(0); }, 30s);
  });
  expect_others_say(processes, 2, "exited without an error message");
}

TEST(FailingProcesses, ExceptionReachesAllRanksWithItsRank) {
  const auto processes = run_rank_processes(4, [&] {
    wait_for_harm(
        1, [] { throw FormatError("no such picture"); }, 30s);
  });
  EXPECT_EQ(processes[1].exit_code, 3);
  expect_others_say(processes, 1, "rank error: rank 1 ended with an exception");
}

// Ranks on two machines: each process has its own host name.
std::vector<RankProcess> run_on_machines(const std::function<void(World&)>& work,
                                         std::chrono::milliseconds deadline) {
  return run_rank_processes(2, [&] {
    const std::string host = "node" + std::to_string(launch::read_rank_environment().rank);
    if (unshare(CLONE_NEWUTS) != 0) {
      ASSERT_EQ(unshare(CLONE_NEWUSER | CLONE_NEWUTS), 0);
    }
    ASSERT_EQ(sethostname(host.data(), host.size()), 0);
    setenv("GLOO_SOCKET_IFNAME", "lo", 1);
    World world = init({.deadline = deadline});
    EXPECT_FALSE(world.is_on_this_machine(1 - world.rank()));
    world.group().barrier();
    world.report_status("began step 7");
    if (world.rank() == 1) {
      std::this_thread::sleep_for(500ms);
      return work(world);
    }
    at::Tensor tensor = torch::ones({1 << 20});
    try {
      world.group().all_reduce(tensor).wait();
    } catch (const Error& error) {
      std::cout << "error: " << error.what() << '\n';
    }
  });
}

TEST(FailingMachines, SilentMachineIsNamedWithAdvice) {
  const auto processes = run_on_machines([](World&) { raise(SIGSTOP); }, 2s);
  expect_others_say(processes, 1, "rank 0 in all_reduce (sum)");
  expect_others_say(processes, 1, "last reported 'began step 7'");
  expect_others_say(processes, 1, " on node1)");
  expect_others_say(processes, 1, "Nothing comes from node1, heartbeats included");
}

TEST(FailingMachines, SlowRankIsNotTakenForNetwork) {
  const auto processes = run_on_machines([](World&) { std::this_thread::sleep_for(4s); }, 2s);
  EXPECT_NE(processes[0].output.find("Heartbeats come from all ranks"), std::string::npos)
      << processes[0].output;
}

// Without a launcher that tells it.
TEST(FailingMachines, KilledProcessOfOtherMachineIsNamedWithoutGloosText) {
  const auto processes = run_on_machines([](World&) { raise(SIGKILL); }, 20s);
  expect_others_say(processes, 1,
                    "error: rank 0 lost its connection to rank 1 in all_reduce (sum)");
  expect_others_say(processes, 1, " on node1)");
  EXPECT_EQ(processes[0].output.find("gloo"), std::string::npos) << processes[0].output;
}

std::set<int> connections() {
  std::set<int> sockets;
  for (int number = 3; number < 1024; ++number) {
    sockaddr_storage peer = {};
    socklen_t length = sizeof peer;
    if (getpeername(number, reinterpret_cast<sockaddr*>(&peer), &length) == 0)
      sockets.insert(number);
  }
  return sockets;
}

class ClosedConnection : public ::testing::TestWithParam<const char*> {};

// The connection closes in the middle of a message or collective.
TEST_P(ClosedConnection, IsReportedWithinMessage) {
  const std::string kind = GetParam();
  const auto processes = run_rank_processes(2, [&] {
    World world = init({.deadline = 30s});
    at::Tensor tensor = torch::ones({1 << 25});
    const comm::Group group =
        world.group().with_check(kind == "checked" ? comm::Check::On : comm::Check::Off);
    if (world.rank() == 1) {
      std::thread([] {
        std::this_thread::sleep_for(50ms);
        raise(SIGKILL);
      }).detach();
      for (;;) (kind == "collective" ? group.all_reduce(tensor) : group.receive(tensor, 0)).wait();
    }
    const auto begin = steady_clock::now();
    try {
      for (;;) (kind == "collective" ? group.all_reduce(tensor) : group.send(tensor, 1)).wait();
    } catch (const RankError& error) {
      std::cout << "rank error: " << error.what() << '\n';
    }
    EXPECT_LT(steady_clock::now() - begin, 3s);
  });
  expect_others_say(processes, 1, "rank error: rank 1 (process ");
}

// Python ignores SIGPIPE; a C++ program need not.
TEST_P(ClosedConnection, RaisesNoSignal) {
  const std::string kind = GetParam();
  const auto processes = run_rank_processes(2, [&] {
    signal(SIGPIPE, SIG_DFL);
    World world = init({.deadline = 30s});
    const auto others = connections();
    const comm::Group all = world.make_group({0, 1});
    const comm::Group group =
        all.with_check(kind == "checked" ? comm::Check::On : comm::Check::Off);
    at::Tensor tensor = torch::ones({16});
    const auto numbers = world.group().all_gather_bytes(std::to_string(getpid()));
    const pid_t other = std::stoi(numbers[1]);
    if (world.rank() == 0) {
      // a running peer would hang up too, and no rank would write to it any more
      kill(other, SIGSTOP);
      std::this_thread::sleep_for(100ms);
      for (const int socket : connections())
        if (!others.contains(socket)) shutdown(socket, SHUT_WR);  // as after the peer's end
    }
    try {
      comm::Work work = kind == "collective" ? group.all_reduce(tensor)
                        : world.rank() == 0  ? group.send(tensor, 1)
                                             : group.receive(tensor, 0);
      if (world.rank() == 0) {
        std::this_thread::sleep_for(100ms);  // until the data are written
        kill(other, SIGCONT);
      }
      work.wait();
      std::cout << "no error\n";
    } catch (const RankError& error) {
      std::cout << "rank error: " << error.what() << '\n';
    }
    if (world.rank() == 0) kill(other, SIGCONT);
  });
  for (const RankProcess& process : processes) {
    EXPECT_EQ(process.signal, 0) << process.output;
    EXPECT_EQ(process.exit_code, 0) << process.output;
    EXPECT_NE(process.output.find("rank error: "), std::string::npos) << process.output;
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, ClosedConnection,
                         ::testing::Values("checked", "unchecked", "collective"),
                         [](const auto& info) { return std::string(info.param); });

}  // namespace
}  // namespace trestle::testing
