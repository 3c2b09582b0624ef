#pragma once

#include <string>
#include <utility>
#include <vector>

#include "trestle/launch/launcher.h"

// What is started: the program, and for each rank its variables and cores.
namespace trestle::launch {

// Where the ranks find each other.
struct Rendezvous {
  std::string address;
  int port = 0;
};

// "HOST", "HOST:PORT", "[::1]:PORT"; without a port 29500. Throws UsageError.
Rendezvous parse_rendezvous(const std::string& words);

// That of the options; where they leave it open a port that is free now, another one each time.
Rendezvous rendezvous_of(const LaunchOptions& options);

// Throws UsageError for options that cannot be.
void check(const LaunchOptions& options);

// The file that a shell would start. Throws UsageError where there is none that can be.
std::string find_program(const std::string& program);

struct RankCommand {
  int rank = 0;
  std::vector<std::pair<std::string, std::string>> variables = {};
  std::vector<int> cores = {};  // empty: not bound
};

// In the order of ranks, those of this machine.
std::vector<RankCommand> rank_commands(const LaunchOptions& options, const Rendezvous& rendezvous,
                                       int restart);

// This process's environment with some variables set, as execve() takes it.
std::vector<std::string> environment_with(
    const std::vector<std::pair<std::string, std::string>>& variables);

}  // namespace trestle::launch
