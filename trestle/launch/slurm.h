#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "trestle/launch/rank_environment.h"

// What srun says. Inside of rank_environment.
namespace trestle::launch {

class VariableReader;

// Whether this process is a task of a step that srun started: not a batch script, nor the shell of
// an allocation.
bool in_slurm_step(const VariableReader& variables);

// Of a task for which the above holds.
RankEnvironment read_slurm(const VariableReader& variables);

// The first host of Slurm's short form: "node[01-04,07],other3" -> "node01". Throws UsageError where
// any part of it is not in that form.
std::string first_host(std::string_view hosts);

struct NodeTasks {
  int tasks = 0;  // of the node that was asked for
  int nodes = 0;
  std::int64_t all_tasks = 0;
};
// Of "2(x3),1" and node 0: 2 tasks of 7, on 4 nodes. `tasks` is 0 for a node that is not there. Throws
// UsageError where the words are not in that form.
NodeTasks tasks_of_node(std::string_view tasks_per_node, int node);

}  // namespace trestle::launch
