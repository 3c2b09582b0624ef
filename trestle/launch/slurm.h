#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "trestle/launch/rank_environment.h"

// Reads srun's variables. Used by rank_environment.cpp only.
namespace trestle::launch {

class VariableReader;

// Whether this process is a task of a step that srun started, not a batch script or the shell of an
// allocation.
bool in_slurm_step(const VariableReader& variables);

// For a task for which in_slurm_step() is true.
RankEnvironment read_slurm(const VariableReader& variables);

// The first host of Slurm's compressed list: "node[01-04,07],other3" -> "node01". Throws UsageError
// if any part of it is not in that form.
std::string first_host(std::string_view hosts);

struct NodeTasks {
  int tasks = 0;  // of the given node; 0 if there is no such node
  int nodes = 0;
  std::int64_t all_tasks = 0;
};
// "2(x3),1" and node 0 -> 2 tasks of 7, on 4 nodes. Throws UsageError if the words are not in that
// form.
NodeTasks tasks_of_node(std::string_view tasks_per_node, int node);

}  // namespace trestle::launch
