#pragma once

#include <string>
#include <utility>
#include <vector>

#include "trestle/launch/launcher.h"

// The program that is started, and each rank's variables and cores.
namespace trestle::launch {

// The address where the ranks meet.
struct RendezvousAddress {
  std::string address;
  int port = 0;
};

// Parses "HOST", "HOST:PORT" or "[::1]:PORT"; the default port is 29500. Throws UsageError.
RendezvousAddress parse_rendezvous(const std::string& words);

// The rendezvous of the options; if they have none, 127.0.0.1 with a free port, another one each
// time.
RendezvousAddress rendezvous_of(const LaunchOptions& options);

// Throws UsageError for invalid options.
void check_options(const LaunchOptions& options);

// The file that a shell would start. Throws UsageError if there is none, or it is not executable.
std::string find_program(const std::string& program);

struct RankCommand {
  int rank = 0;
  std::vector<std::pair<std::string, std::string>> variables = {};
  std::vector<int> cores = {};  // empty: not bound
};

// The commands of this machine's ranks, in order.
std::vector<RankCommand> rank_commands(const LaunchOptions& options,
                                       const RendezvousAddress& rendezvous, int restart);

// This process's environment with additional variables, in the form of execve().
std::vector<std::string> environment_with(
    const std::vector<std::pair<std::string, std::string>>& variables);

}  // namespace trestle::launch
