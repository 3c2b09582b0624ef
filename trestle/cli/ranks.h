#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace trestle {
class Error;
class World;
}  // namespace trestle

// Runs a verb on several ranks.
namespace trestle::cli {

struct RankOptions {
  std::string ranks = "";  // "", "4" processes, "threads:4"
  int default_ranks = 1;   // processes, if `ranks` is "" and no launcher has started this process
  // Called with the number of ranks before they are started here. Refuses what would end them all.
  std::function<void(int ranks)> check = {};
  int max_restarts = 0;  // of processes that are started here
  // The longest wait of a rank for another rank.
  std::chrono::milliseconds deadline = std::chrono::minutes(10);
  // The words of this command line; the processes of its ranks get them too.
  std::vector<std::string> words = {};
  // Files in these words, which each process reads: none may be a pipe. Entries may be empty.
  std::vector<std::string> files = {};
};

// Calls `work` on the ranks and returns its result (of several threads: rank 0's):
//
// - in a process that a launcher has started as one of several ranks (torchrun, Slurm, trestle
//   launch): with that rank's world; `ranks` must be empty or the same number;
// - "4": starts this program four times and returns when all processes have ended
//   (launch/launcher.h);
// - "threads:4": on four threads of this process;
// - "": on `default_ranks` processes; if that is 1, in this process, without a world.
//
// Throws UsageError for any other text. An error of a rank is printed once on each machine: by the
// first rank that failed, and elsewhere by the machine's first rank, which also reports that
// another rank was killed. Before the ranks have met each rank prints its own errors.
int on_ranks(const RankOptions& options, const std::function<int(const World*)>& work);

// The number of ranks that a launcher or RankOptions::ranks gives; 0 if neither does. Throws as
// on_ranks().
int asked_ranks(const RankOptions& options);

// Whether a launcher started this process as a rank other than the one that prints what all ranks
// have in common: a plan, a list, help.
bool another_rank_prints();
// Whether another rank of this machine prints errors in the command line or its files. True only if
// the launcher has surely given all ranks the same command line.
bool another_rank_complains();

// Calls `check` of the command line and its files before the ranks meet. Its UsageErrors are those
// of all ranks: they go to the ranks of other machines, and one rank of this machine throws them.
// Returns false on its other ranks, which exit with usage_error.
bool is_valid_on_all_ranks(const std::function<void()>& check);

// Tells the ranks of other machines an error of the command line or its files: they may not have
// it, and must not wait for this machine's ranks. Does nothing on one machine.
void tell_other_machines(const Error& error);

// 0, or the exit code for a signal to any of the ranks, which rank 0 then names. All ranks call it;
// `world` is null for a single process.
int code_of_signals(const World* world);

// Throws UsageError in a process that is one of several ranks, for a verb that runs on one process.
void refuse_on_ranks(const std::string& verb);

}  // namespace trestle::cli
