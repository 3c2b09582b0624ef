// Ranks that cannot meet: a clear error on each of them, in time.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/socket.h>
#include <torch/torch.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <mutex>
#include <thread>

#include "tests/support/run_ranks.h"
#include "trestle/base/error.h"
#include "trestle/comm/processes/rendezvous.h"
#include "trestle/comm/rank_error.h"

namespace trestle::testing {
namespace {

using namespace std::chrono_literals;

// For each environment: the type and message of init()'s error, "" for success.
std::vector<std::string> errors_of(const std::vector<launch::RankEnvironment>& environments,
                                   std::chrono::milliseconds deadline) {
  std::vector<std::string> errors(environments.size());
  std::vector<std::thread> threads;
  const auto begin = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < environments.size(); ++i) {
    threads.emplace_back([&, i] {
      try {
        const World world = init({.deadline = deadline, .environment = environments[i]});
      } catch (const UsageError& error) {
        errors[i] = std::string("usage: ") + error.what();
      } catch (const DeadlineError& error) {
        errors[i] = std::string("deadline: ") + error.what();
      } catch (const RankError& error) {
        errors[i] = std::string("rank: ") + error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LT(std::chrono::steady_clock::now() - begin, deadline + 5s);
  return errors;
}

void expect_says(const std::string& error, const std::string& type, const std::string& words) {
  EXPECT_EQ(error.substr(0, type.size()), type) << error;
  EXPECT_NE(error.find(words), std::string::npos) << error;
}

// A socket that listens on its own port and never answers.
class Listener {
 public:
  Listener() : number_(socket(AF_INET, SOCK_STREAM, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    socklen_t length = sizeof address;
    EXPECT_EQ(bind(number_, reinterpret_cast<sockaddr*>(&address), length), 0);
    EXPECT_EQ(listen(number_, 8), 0);
    getsockname(number_, reinterpret_cast<sockaddr*>(&address), &length);
    port_ = ntohs(address.sin_port);
  }
  ~Listener() { close(number_); }
  int port() const { return port_; }

 private:
  int number_, port_ = 0;
};

TEST(Rendezvous, RefusesTwoProcessesWithOneRankNumber) {
  const int port = free_port();
  const auto errors = errors_of(
      {rank_environment(0, 3, port), rank_environment(1, 3, port), rank_environment(1, 3, port)},
      5s);
  for (const std::string& error : errors)
    expect_says(error, "usage", "two processes have the rank number 1");
}

TEST(Rendezvous, RefusesDifferentWorldSizes) {
  const int port = free_port();
  const auto errors = errors_of(
      {rank_environment(0, 3, port), rank_environment(1, 4, port), rank_environment(2, 3, port)},
      5s);
  for (const std::string& error : errors) expect_says(error, "usage", "world size 4");
}

TEST(Rendezvous, NamesMissingRanks) {
  const int port = free_port();
  const auto errors =
      errors_of({rank_environment(0, 4, port), rank_environment(2, 4, port)}, 500ms);
  for (const std::string& error : errors)
    expect_says(error, "deadline", "ranks 1, 3 of 4 have not arrived");
}

TEST(Rendezvous, ReportsPortInUse) {
  const Listener other;
  const auto errors = errors_of(
      {rank_environment(0, 2, other.port()), rank_environment(1, 2, other.port())}, 500ms);
  expect_says(errors[0], "rank", "it is in use");
  expect_says(errors[1], "rank", "is not a rendezvous store: it does not answer");
}

TEST(Rendezvous, ReportsUnreachableRankZero) {
  expect_says(errors_of({rank_environment(1, 2, free_port())}, 300ms)[0], "rank",
              "Connection refused");
  auto environment = rank_environment(1, 2, 4000);
  environment.address = "no.such.machine.invalid";
  expect_says(errors_of({environment}, 300ms)[0], "rank",
              "could not reach rank 0 at no.such.machine.invalid:4000");
}

TEST(Rendezvous, RefusesInvalidNumbers) {
  expect_says(errors_of({rank_environment(2, 2, 4000)}, 300ms)[0], "usage",
              "rank 2 is not valid in a world of 2 ranks");
  expect_says(errors_of({rank_environment(0, 2, 0)}, 300ms)[0], "usage", "port 0");
  expect_says(errors_of({rank_environment(0, 1, 0)}, -1ms)[0], "usage", "deadline is -1 ms");
}

// A rank that cannot start tells so in the store, also rank 0, which hosts it.
TEST(Rendezvous, RankThatCannotStartEndsAllWithItsReason) {
  for (const int at_fault : {0, 2}) {
    const int port = free_port();
    std::vector<std::string> errors(3);
    std::vector<std::thread> threads;
    const auto begin = std::chrono::steady_clock::now();
    for (int rank = 0; rank < 3; ++rank) {
      threads.emplace_back([&, rank] {
        try {
          init({.backend = rank == at_fault ? "bogus" : "gloo",
                .deadline = 20s,
                .environment = rank_environment(rank, 3, port)});
        } catch (const UsageError& error) {
          errors[static_cast<std::size_t>(rank)] = error.what();
        }
      });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_LT(std::chrono::steady_clock::now() - begin, 5s);
    for (int rank = 0; rank < 3; ++rank) {
      const std::string& error = errors[static_cast<std::size_t>(rank)];
      EXPECT_NE(error.find("unknown backend 'bogus'"), std::string::npos) << error;
      const std::string named = "rank " + std::to_string(at_fault) + " on ";
      EXPECT_EQ(error.find(named) != std::string::npos, rank != at_fault) << error;
    }
  }
}

TEST(Rendezvous, MissingNetworkInterfaceOfOneRankEndsAll) {
  const auto processes = run_rank_processes(3, [] {
    if (launch::read_rank_environment().rank == 1) setenv("GLOO_SOCKET_IFNAME", "eth77", 1);
    const World world = init({.deadline = 20s});
  });
  for (const RankProcess& process : processes) {
    EXPECT_EQ(process.exit_code, 3);
    EXPECT_NE(process.output.find("GLOO_SOCKET_IFNAME=eth77: this machine has no network interface "
                                  "of that name; it has "),
              std::string::npos)
        << process.output;
  }
}

TEST(Rendezvous, PrintsLateRanksAfterFiveSeconds) {
  const auto processes = run_rank_processes(2, [] {
    if (launch::read_rank_environment().rank == 1) std::this_thread::sleep_for(6s);
    const World world = init({.deadline = 20s});
  });
  EXPECT_NE(processes[0].output.find("trestle: waiting for rank 1 of 2 at 127.0.0.1:"),
            std::string::npos)
      << processes[0].output;
  EXPECT_NE(processes[0].output.find("; 5 s of at most 20 s have passed"), std::string::npos);
  EXPECT_EQ(processes[1].output.find("waiting"), std::string::npos) << processes[1].output;
}

// A launcher whose ranks failed before they met has restarted them more often.
TEST(Rendezvous, RanksMeetWithDifferentRestartCounts) {
  const int port = free_port();
  std::vector<int> counts(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      auto environment = rank_environment(rank, 2, port);
      environment.restart = 2 * rank;
      counts[static_cast<std::size_t>(rank)] =
          init({.deadline = 5s, .environment = environment}).restart();
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(counts, (std::vector<int>{2, 2}));
}

TEST(Rendezvous, RestartsMeetAtSamePort) {
  const int port = free_port();
  for (int restart = 0; restart < 3; ++restart) {
    auto first = rank_environment(0, 2, port), second = rank_environment(1, 2, port);
    first.restart = second.restart = restart;
    for (const std::string& error : errors_of({first, second}, 5s)) EXPECT_EQ(error, "");
  }
}

// The first rank of the next world may still find the previous world's store.
void follow_each_other(const launch::RankEnvironment& environment, int worlds) {
  for (int i = 0; i < worlds; ++i) {
    const World world = init({.deadline = 10s, .environment = environment});
    at::Tensor sum = torch::ones({1}) * (i + environment.rank);
    world.group().all_reduce(sum).wait();
    EXPECT_EQ(sum.item<double>(), 3 * i + 3);
    // In each world another rank leaves late.
    if (environment.rank == i % 3) std::this_thread::sleep_for(100ms);
  }
}

TEST(Rendezvous, AllowsSeveralWorldsInSequence) {
  const auto processes = run_rank_processes(
      3, [] { follow_each_other(launch::read_rank_environment(), 5); }, {.limit = 40s});
  for (const RankProcess& process : processes) EXPECT_EQ(process.exit_code, 0) << process.output;
}

// The store keeps its keys when a world ends.
TEST(Rendezvous, AllowsSeveralWorldsInSequenceInStoreOfLauncher) {
  const int port = free_port();
  auto launcher = rank_environment(0, 1, port);
  launcher.restart = 99;  // its keys differ from the ranks'
  const comm::Rendezvous store = comm::rendezvous(launcher, 10s);
  std::vector<std::string> errors(3);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 3; ++rank) {
    threads.emplace_back([&, rank] {
      auto environment = rank_environment(rank, 3, port);
      environment.store_of_launcher = true;
      try {
        follow_each_other(environment, 4);
      } catch (const std::exception& error) {
        errors[static_cast<std::size_t>(rank)] = error.what();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const std::string& error : errors) EXPECT_EQ(error, "");
}

TEST(Rendezvous, RefusesOneRankNumberOnProcesses) {
  const auto processes = run_rank_processes(3, [] {
    auto environment = launch::read_rank_environment();
    if (environment.rank == 2) environment.rank = 1;
    const World world = init({.deadline = 5s, .environment = environment});
  });
  for (const RankProcess& process : processes) {
    EXPECT_EQ(process.exit_code, 3);
    EXPECT_NE(process.output.find("two processes have the rank number 1"), std::string::npos)
        << process.output;
  }
}

// The processes of one test share a file for each event.
class Event {
 public:
  explicit Event(const std::string& name)
      : file_(::testing::TempDir() + std::to_string(getppid()) + "_" +
              ::testing::UnitTest::GetInstance()->current_test_info()->name() + "_" + name) {}
  void happens(const std::string& words = "") const {
    std::ofstream(file_ + ".new") << words << std::flush;
    std::filesystem::rename(file_ + ".new", file_);
  }
  // Returns the words.
  std::string wait() const {
    while (!std::filesystem::exists(file_)) std::this_thread::sleep_for(5ms);
    std::string words;
    std::getline(std::ifstream(file_), words);
    return words;
  }
  void wait_for_end_of_process() const {
    const pid_t process = std::stoi(wait());
    while (kill(process, 0) == 0) {  // a zombie until the test's process has reaped it
      std::this_thread::sleep_for(5ms);
    }
  }

 private:
  std::string file_;
};

void meet(const launch::RankEnvironment& environment, int restart) {
  const World world = init({.deadline = 10s, .environment = environment});
  EXPECT_EQ(world.restart(), restart);
  at::Tensor sum = torch::ones({1});
  world.group().all_reduce(sum).wait();
  EXPECT_EQ(sum.item<double>(), world.size());
}

void expect_success(const std::vector<RankProcess>& processes, const std::vector<int>& which) {
  for (const int process : which)
    EXPECT_EQ(processes[static_cast<std::size_t>(process)].exit_code, 0)
        << processes[static_cast<std::size_t>(process)].output;
}

// As the launcher of another machine restarts a killed rank: at once, while rank 0 still computes
// in the old world, whose store it hosts. Process 2 is the new rank 1.
TEST(RestartedRanks, NewProcessWaitsForNextStoreOfRankZero) {
  const auto begin = std::chrono::steady_clock::now();
  const auto processes = run_rank_processes(3, [] {
    auto environment = launch::read_rank_environment();
    const int process = environment.rank;
    environment.world_size = 2;
    environment.max_restarts = 1;
    const Event killed("killed");
    if (process == 0) {
      const auto compute = [&] {
        const World world = init({.deadline = 10s, .environment = environment});
        world.group().barrier();
        std::this_thread::sleep_for(500ms);
        while (!world.failure()) std::this_thread::sleep_for(5ms);
        EXPECT_NE(world.failure()->find("rank 1 (process "), std::string::npos) << *world.failure();
      };
      compute();
    } else if (process == 1) {
      const World world = init({.deadline = 10s, .environment = environment});
      world.group().barrier();
      killed.happens(std::to_string(getpid()));
      raise(SIGKILL);
    } else {
      environment.rank = environment.local_rank = 1;
      killed.wait_for_end_of_process();
    }
    environment.restart = 1;
    meet(environment, 1);
  });
  expect_success(processes, {0, 2});
  EXPECT_LT(std::chrono::steady_clock::now() - begin, 8s);
}

// Three ranks, of which `rank` is killed while it waits for rank 2. Process 3 takes its place.
std::vector<RankProcess> replace_during_rendezvous(int rank) {
  return run_rank_processes(4, [rank] {
    auto environment = launch::read_rank_environment();
    const int process = environment.rank;
    environment.world_size = 3;
    environment.max_restarts = 1;
    const Event killed("killed"), arrives("arrives");
    if (process == rank) {
      std::thread([&] {
        std::this_thread::sleep_for(700ms);
        killed.happens(std::to_string(getpid()));
        raise(SIGKILL);
      }).detach();
    } else if (process == 2) {
      arrives.wait();
    } else if (process == 3) {
      environment.rank = environment.local_rank = rank;
      environment.restart = 1;
      killed.wait_for_end_of_process();
      arrives.happens();
    }
    meet(environment, 1);
  });
}

TEST(RestartedRanks, NewProcessReplacesOneKilledDuringRendezvous) {
  const auto processes = replace_during_rendezvous(1);
  EXPECT_EQ(processes[1].signal, SIGKILL);
  expect_success(processes, {0, 2, 3});
}

TEST(RestartedRanks, WaitingRanksFollowRankZeroToItsNextStore) {
  const auto processes = replace_during_rendezvous(0);
  EXPECT_EQ(processes[0].signal, SIGKILL);
  expect_success(processes, {1, 2, 3});
}

// torchrun keeps its store over restarts, and counts restarts for each machine. Process 2 is the
// new rank 1 and process 3 hosts the store.
TEST(RestartedRanks, MeetAgainInStoreOfLauncher) {
  const auto processes = run_rank_processes(4, [] {
    auto environment = launch::read_rank_environment();
    const int process = environment.rank;
    const Event hosts("hosts"), killed("killed");
    if (process == 3) {
      environment = rank_environment(0, 1, environment.port);
      const comm::Rendezvous store = comm::rendezvous(environment, 10s);
      hosts.happens();
      for (int rank = 0; rank < 2; ++rank) Event("done" + std::to_string(rank)).wait();
      return;
    }
    hosts.wait();  // else rank 1 could join the round of process 3
    environment.world_size = 2;
    environment.store_of_launcher = true;
    if (process == 2) {
      environment.rank = environment.local_rank = environment.restart = 1;
      killed.wait_for_end_of_process();
    } else {
      const World world = init({.deadline = 10s, .environment = environment});
      world.group().barrier();
      if (process == 1) {
        killed.happens(std::to_string(getpid()));
        raise(SIGKILL);
      }
      EXPECT_THROW(world.group().barrier(), RankError);
    }
    meet(environment, 1);
    Event("done" + std::to_string(environment.rank)).happens();
  });
  expect_success(processes, {0, 2, 3});
}

}  // namespace
}  // namespace trestle::testing
