#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trestle/comm/threads/spawn.h"
#include "trestle/comm/world.h"

// Ranks for tests: threads, threads with Gloo, and processes. A rank that cannot start fails the
// test.
namespace trestle::testing {

using RankFunction = std::function<void(World&)>;

// Runs thread ranks. The caller gets a rank's exception; GoogleTest's expectations work on all
// ranks.
void run_ranks(int ranks, const RankFunction& function,
               std::chrono::milliseconds deadline = std::chrono::seconds(20));

// A port of 127.0.0.1 that was free a moment ago.
int free_port();

// The environment that a launcher gives one of `size` processes on this machine.
launch::RankEnvironment rank_environment(int rank, int size, int port);

// Runs thread ranks that call init() like processes: they meet at a port and communicate by Gloo.
// The caller gets the first exception.
void run_gloo_ranks(int ranks, const RankFunction& function,
                    std::chrono::milliseconds deadline = std::chrono::seconds(20));

struct RankProcess {
  int exit_code = -1;  // 0; 1 = an expectation failed; 3 = an exception; -1 = ended by a signal
  int signal = 0;
  bool was_stopped = false;
  std::string output;  // standard output and standard error
};

struct ProcessOptions {
  std::chrono::milliseconds limit = std::chrono::seconds(60);  // then all are killed
  std::map<std::string, std::string> variables = {};           // in addition to a launcher's
};

// Runs process ranks: starts this binary again with only the running test, where this call runs
// `body` and exits. Allows one call per test. Kills a stopped process once the other processes have
// ended.
std::vector<RankProcess> run_rank_processes(int ranks, const std::function<void()>& body,
                                            const ProcessOptions& options = {});

// Runs process ranks with a World and expects that every process exits with 0.
void run_process_ranks(int ranks, const RankFunction& function,
                       std::chrono::milliseconds deadline = std::chrono::seconds(20));

}  // namespace trestle::testing
