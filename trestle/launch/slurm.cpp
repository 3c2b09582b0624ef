#include "trestle/launch/slurm.h"

#include <charconv>
#include <optional>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/launch/variables.h"

namespace trestle::launch {

namespace {

constexpr std::string_view digit_characters = "0123456789";

bool is_host_character(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' ||
         c == '.' || c == '_';
}

[[noreturn]] void no_hosts(std::string_view hosts, std::string_view why) {
  throw UsageError(text("'", hosts.substr(0, 200), "' is not a Slurm host list: ", why),
                   {.hint = "Set MASTER_ADDR to the machine of rank 0."});
}

// "01-04,07" -> "01"; all ranges are checked.
std::string first_number(std::string_view ranges, std::string_view hosts) {
  std::string first;
  for (const std::string& range : split(ranges, ',')) {
    const auto dash = range.find('-');
    const std::string from = range.substr(0, dash);
    const std::string to = dash == std::string::npos ? from : range.substr(dash + 1);
    for (const std::string& number : {from, to})
      if (number.empty() || number.size() > 9 ||
          number.find_first_not_of(digit_characters) != std::string::npos)
        no_hosts(hosts, text("'", range, "' is not a range of numbers"));
    if (std::stol(from) > std::stol(to)) no_hosts(hosts, text("'", range, "' is descending"));
    if (first.empty()) first = from;
  }
  return first;
}

// The name that begins at `at`; it ends at a comma outside of brackets.
std::string_view name_at(std::string_view hosts, std::size_t at) {
  std::size_t end = at;
  for (bool inside = false; end < hosts.size() && (inside || hosts[end] != ','); ++end) {
    if (hosts[end] == '[') inside = true;
    if (hosts[end] == ']') inside = false;
  }
  return hosts.substr(at, end - at);
}

// "rack[2-3]node[01-04]" -> "rack2node01".
std::string first_of_name(std::string_view name, std::string_view hosts) {
  std::string first;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (is_host_character(name[i])) {
      first += name[i];
    } else if (name[i] == '[') {
      const auto end = name.find(']', i);
      if (end == std::string_view::npos) no_hosts(hosts, "a bracket is not closed");
      first += first_number(name.substr(i + 1, end - i - 1), hosts);
      i = end;
    } else {
      no_hosts(hosts, "a host's name has letters, digits, '-', '.' and '_'");
    }
  }
  if (first.empty()) no_hosts(hosts, "a name is empty");
  return first;
}

// The positive number that `words` is, or nothing.
std::optional<int> count_of(std::string_view words) {
  int count = 0;
  const char* const end = words.data() + words.size();
  const auto [behind, error] = std::from_chars(words.data(), end, count);
  if (error != std::errc() || behind != end || count < 1 || count > most_ranks) return std::nullopt;
  return count;
}

// The number of machines, and of ranks on this machine.
struct Machines {
  int nodes = 1;
  int local_size = 1;
};

Machines read_machines(const VariableReader& variables, const Number& size, const Number& node) {
  for (const char* name : {"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"}) {
    const auto words = variables.find(name);
    if (!words) continue;
    const NodeTasks tasks = tasks_of_node(*words, node.value);
    if (tasks.all_tasks != size.value)
      throw UsageError(text("environment variables contradict each other: ", name, "=",
                            words->substr(0, 100), " means ", tasks.all_tasks, " tasks, but ",
                            size.words()));
    if (tasks.tasks == 0)
      throw UsageError(text("environment variables contradict each other: ", name, "=",
                            words->substr(0, 100), " has ", tasks.nodes, " nodes, but ",
                            node.words()));
    return {tasks.nodes, tasks.tasks};
  }
  const Number nodes =
      variables.number({"SLURM_STEP_NUM_NODES", "SLURM_NNODES"}, 1, most_ranks, size.words());
  if (nodes.value == 1) return {1, size.value};
  throw UsageError(text("environment variable SLURM_STEP_TASKS_PER_NODE is not set, but ",
                        nodes.words(), " is: the number of ranks on this node is unknown"));
}

std::string read_address(const VariableReader& variables, const Machines& machines) {
  if (const auto address = variables.address()) return *address;
  if (machines.nodes == 1) return "127.0.0.1";
  for (const char* name : {"SLURM_STEP_NODELIST", "SLURM_NODELIST", "SLURM_JOB_NODELIST"}) {
    const auto hosts = variables.find(name);
    if (!hosts) continue;
    try {
      return first_host(*hosts);
    } catch (Error& error) {
      error.add_context(text("in the environment variable ", name));
      throw;
    }
  }
  throw UsageError("none of the environment variables SLURM_STEP_NODELIST and MASTER_ADDR is set",
                   {.hint = "Set MASTER_ADDR to the machine of rank 0."});
}

}  // namespace

bool in_slurm_step(const VariableReader& variables) {
  // Larger step numbers are Slurm's own: the batch script, the interactive shell and others.
  constexpr std::int64_t first_reserved_step = 4294967000;
  if (!variables.has("SLURM_PROCID")) return false;
  for (const char* name : {"SLURM_STEP_ID", "SLURM_STEPID"}) {
    const auto words = variables.find(name);
    if (!words) continue;
    std::int64_t step = -1;
    const char* const end = words->data() + words->size();
    const auto [behind, error] = std::from_chars(words->data(), end, step);
    return error == std::errc() && behind == end && step >= 0 && step < first_reserved_step;
  }
  return false;
}

RankEnvironment read_slurm(const VariableReader& variables) {
  const Number rank = variables.number({"SLURM_PROCID"}, 0, most_ranks, "SLURM_STEP_ID");
  const Number size = variables.number({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"}, 1,
                                       most_ranks, rank.words());
  check_below(rank, size);
  RankEnvironment result{.rank = rank.value, .world_size = size.value, .source = "slurm"};
  if (size.value == 1) return result;
  const Number local_rank = variables.number({"SLURM_LOCALID"}, 0, most_ranks, rank.words());
  const Number node = variables.number({"SLURM_NODEID"}, 0, most_ranks, rank.words());
  const Machines machines = read_machines(variables, size, node);
  check_below(local_rank, {"the tasks of this node", machines.local_size});
  result.local_rank = local_rank.value;
  result.local_size = machines.local_size;
  result.node = node.value;
  result.address = read_address(variables, machines);
  if (const auto port = variables.port()) {
    result.port = *port;
  } else {
    std::string job;
    for (const char* name : {"SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_STEPID"})
      job += variables.find(name).value_or("") + ".";
    result.port = port_from(job);
  }
  return result;
}

std::string first_host(std::string_view hosts) {
  std::string first;
  for (std::size_t at = 0; at <= hosts.size();) {
    const std::string_view name = name_at(hosts, at);
    const std::string host = first_of_name(name, hosts);
    if (first.empty()) first = host;
    at += name.size() + 1;
  }
  return first;
}

NodeTasks tasks_of_node(std::string_view tasks_per_node, int node) {
  NodeTasks result;
  for (const std::string& part : split(tasks_per_node, ',')) {
    const auto bracket = part.find("(x");
    const bool repeated = bracket != std::string::npos && part.ends_with(')');
    const auto tasks = count_of(std::string_view(part).substr(0, bracket));
    const auto nodes =
        repeated ? count_of(std::string_view(part).substr(bracket + 2, part.size() - bracket - 3))
                 : std::optional(1);
    if (!tasks || !nodes || (bracket != std::string::npos && !repeated))
      throw UsageError(text("'", tasks_per_node.substr(0, 200),
                            "' is not Slurm's list of tasks per node: '", part.substr(0, 50),
                            "' is not of the form 2 or 2(x3)"));
    if (result.nodes + *nodes > most_ranks)
      throw UsageError(
          text("'", tasks_per_node.substr(0, 200), "' has more than ", most_ranks, " nodes"));
    if (node >= result.nodes && node < result.nodes + *nodes) result.tasks = *tasks;
    result.nodes += *nodes;
    result.all_tasks += static_cast<std::int64_t>(*tasks) * *nodes;
  }
  return result;
}

}  // namespace trestle::launch
