#include "trestle/launch/rank_command.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <optional>
#include <sstream>
#include <system_error>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/launch/cores.h"
#include "trestle/launch/variables.h"

namespace trestle::launch {

namespace {

constexpr int most_local_ranks = 1000;  // each has three pipes, all of which are polled

int free_port() {
  const int wanted = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  socklen_t size = sizeof address;
  auto* const generic = reinterpret_cast<sockaddr*>(&address);
  const bool found =
      wanted >= 0 && bind(wanted, generic, size) == 0 && getsockname(wanted, generic, &size) == 0;
  const int reason = errno;
  if (wanted >= 0) close(wanted);
  if (!found)
    throw FileError(
        text("no free port for the rendezvous: ", std::generic_category().message(reason)));
  return ntohs(address.sin_port);
}

bool can_run(const std::string& path) {
  struct stat found {};
  return stat(path.c_str(), &found) == 0 && S_ISREG(found.st_mode) &&
         access(path.c_str(), X_OK) == 0;
}

}  // namespace

RendezvousAddress parse_rendezvous(const std::string& words) {
  const auto refuse = [&](const char* why) -> void {
    throw UsageError(text("'", words, "' is not HOST or HOST:PORT: ", why),
                     {.hint = "For example: node1, node1:29500, [fe80::1]:29500"});
  };
  std::string host = words, port;
  const auto colon = words.rfind(':');
  if (words.starts_with('[')) {
    const auto end = words.find(']');
    if (end == std::string::npos) refuse("a bracket is not closed");
    host = words.substr(1, end - 1);
    port = words.substr(end + 1);
    if (!port.empty() && port[0] != ':')
      refuse("after the bracket only a colon and a port may follow");
  } else if (colon != std::string::npos &&
             words.find(':') == colon) {  // an IPv6 address has several
    host = words.substr(0, colon);
    port = words.substr(colon);
  }
  if (host.empty()) refuse("the host is empty");
  in6_addr address{};
  if (host.find(':') != std::string::npos &&
      inet_pton(AF_INET6, host.substr(0, host.find('%')).c_str(), &address) != 1)
    refuse("only an IPv6 address has several colons");
  if (host.find_first_of(" \t/[]") != std::string::npos) refuse("the host's name is invalid");
  int number = default_port;
  if (!port.empty()) {
    const char* const end = port.data() + port.size();
    const auto [behind, error] = std::from_chars(port.data() + 1, end, number);
    if (error != std::errc() || behind != end || number < 1 || number > 65535)
      refuse("a port is a number from 1 to 65535");
  }
  return {host, number};
}

RendezvousAddress rendezvous_of(const LaunchOptions& options) {
  if (!options.rendezvous.empty()) return parse_rendezvous(options.rendezvous);
  return {"127.0.0.1", free_port()};
}

void check_options(const LaunchOptions& options) {
  const auto within = [](const char* what, int value, int smallest, int largest) {
    if (value < smallest || value > largest)
      throw UsageError(text(what, " is ", value, "; it must be from ", smallest, " to ", largest));
  };
  within("the number of ranks", options.ranks, 1, most_local_ranks);
  within("the number of nodes", options.nodes, 1, most_ranks / most_local_ranks);
  if (options.node_rank < 0 || options.node_rank >= options.nodes)
    throw UsageError(text("node ", options.node_rank, " is not one of ", options.nodes),
                     {.hint = "Nodes are numbered from 0."});
  within("the number of restarts", options.max_restarts, 0, most_ranks);
  if (options.nodes > 1 && options.rendezvous.empty())
    throw UsageError(text(options.nodes, " nodes need the address of node 0"),
                     {.hint = "Give --rendezvous HOST or HOST:PORT, the same on all nodes."});
  if (options.grace.count() < 0 || options.notice.count() < 0)
    throw UsageError("the grace and notice times must not be negative");
  if (!options.rendezvous.empty()) parse_rendezvous(options.rendezvous);
}

std::string find_program(const std::string& program) {
  if (program.empty()) throw UsageError("there is no program to start");
  if (program.find('/') != std::string::npos) {
    if (can_run(program)) return program;
    struct stat found {};
    if (stat(program.c_str(), &found) != 0)
      throw UsageError(text(program, ": ", std::generic_category().message(errno)));
    throw UsageError(
        text(program, S_ISDIR(found.st_mode) ? " is a folder" : " is not executable"),
        {.hint = S_ISDIR(found.st_mode) ? "" : text("Make it executable: chmod +x ", program)});
  }
  const char* const path = std::getenv("PATH");
  for (const std::string& folder : split(path == nullptr ? "/usr/bin:/bin" : path, ':')) {
    std::string file = (folder.empty() ? "." : folder) + "/" + program;
    if (can_run(file)) return file;
  }
  struct stat here {};
  throw UsageError(text("there is no program '", program, "' in PATH"),
                   {.hint = stat(program.c_str(), &here) == 0
                                ? text("To run the one in this folder: ./", program)
                                : ""});
}

namespace {

// A name that is unique to this launch and equal in all its restarts: the launcher's pid and start
// time (field 22 of /proc/PID/stat; the fields are counted after the program's name).
std::string launch_name() {
  std::ifstream file("/proc/self/stat");
  std::string line;
  std::getline(file, line);
  std::istringstream fields(line.substr(line.rfind(')') + 1));
  std::string field;
  for (int number = 3; number <= 22; ++number) fields >> field;
  return text("trestle-", getpid(), "-", field);
}

}  // namespace

std::vector<RankCommand> rank_commands(const LaunchOptions& options,
                                       const RendezvousAddress& rendezvous, int restart) {
  const std::vector<int> cores = allowed_cores();
  const auto parts = split_cores(cores, options.ranks);
  const std::string world = text(options.ranks * options.nodes);
  std::vector<RankCommand> commands;
  for (int local = 0; local < options.ranks; ++local) {
    RankCommand command{.rank = options.node_rank * options.ranks + local};
    const std::string rank = text(command.rank);
    command.variables = {{"RANK", rank},
                         {"WORLD_SIZE", world},
                         {"LOCAL_RANK", text(local)},
                         {"LOCAL_WORLD_SIZE", text(options.ranks)},
                         {"GROUP_RANK", text(options.node_rank)},
                         {"GROUP_WORLD_SIZE", text(options.nodes)},
                         {"ROLE_NAME", "default"},
                         {"ROLE_RANK", rank},
                         {"ROLE_WORLD_SIZE", world},
                         {"MASTER_ADDR", rendezvous.address},
                         {"MASTER_PORT", text(rendezvous.port)},
                         {"TORCHELASTIC_RESTART_COUNT", text(restart)},
                         {"TORCHELASTIC_MAX_RESTARTS", text(options.max_restarts)},
                         {"TORCHELASTIC_RUN_ID", launch_name()},
                         {"TORCHELASTIC_USE_AGENT_STORE", "False"},
                         {"TRESTLE_LAUNCH", "1"}};
    if (std::getenv("OMP_NUM_THREADS") == nullptr)
      command.variables.emplace_back(
          "OMP_NUM_THREADS",
          text(std::max<std::size_t>(cores.size() / static_cast<std::size_t>(options.ranks), 1)));
    if (options.binding == Binding::Cores) command.cores = parts[static_cast<std::size_t>(local)];
    commands.push_back(std::move(command));
  }
  return commands;
}

std::vector<std::string> environment_with(
    const std::vector<std::pair<std::string, std::string>>& variables) {
  std::vector<std::string> all;
  for (char** at = environ; at != nullptr && *at != nullptr; ++at) {
    const std::string entry = *at;
    const std::string name = entry.substr(0, entry.find('='));
    const bool replaced = std::any_of(variables.begin(), variables.end(),
                                      [&](const auto& variable) { return variable.first == name; });
    if (!replaced) all.push_back(entry);
  }
  for (const auto& [name, value] : variables) all.push_back(text(name, "=", value));
  return all;
}

}  // namespace trestle::launch
