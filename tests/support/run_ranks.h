#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trestle/comm/spawn.h"
#include "trestle/comm/world.h"

// Ranks for tests: threads, threads that talk by Gloo, and processes. A rank that cannot start fails
// the test.
namespace trestle::testing {

using RankFunction = std::function<void(World&)>;

// Ranks that are threads of this process. A failure of one is the caller's exception; expectations of
// GoogleTest may be made on all.
void run_ranks(int ranks, const RankFunction& function,
               std::chrono::milliseconds deadline = std::chrono::seconds(20));

// A port of 127.0.0.1 that was free just now.
int free_port();

// What a launcher would say to one of `size` processes on this machine.
launch::RankEnvironment rank_environment(int rank, int size, int port);

// Ranks that are threads, each of which calls init() as a process would: they meet at a port and talk
// by Gloo. The first failure is the caller's exception.
void run_gloo_ranks(int ranks, const RankFunction& function,
                    std::chrono::milliseconds deadline = std::chrono::seconds(20));

struct RankProcess {
  int exit_code = -1;  // 0; 1 = an expectation failed; 3 = an exception; -1 = ended by a signal
  int signal = 0;
  bool was_stopped = false;
  std::string output;  // standard output and error
};

struct ProcessOptions {
  std::chrono::milliseconds limit = std::chrono::seconds(60);  // then all are killed
  std::map<std::string, std::string> variables = {};           // besides a launcher's
};

// Ranks that are processes: this binary again, with the running test's name alone, where this call runs
// `body` and ends the process. One call in a test. A process that is stopped is killed when the others
// have ended.
std::vector<RankProcess> run_rank_processes(int ranks, const std::function<void()>& body,
                                            const ProcessOptions& options = {});

// The same with a world, and the expectation that every process ends well.
void run_process_ranks(int ranks, const RankFunction& function,
                       std::chrono::milliseconds deadline = std::chrono::seconds(20));

}  // namespace trestle::testing
