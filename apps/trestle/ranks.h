#pragma once

#include <chrono>
#include <functional>
#include <string>
#include <vector>

namespace trestle {
class World;
}

// How a verb comes to run on several ranks.
namespace trestle::app {

struct RankOptions {
  std::string ranks = "";  // "", "4" processes, "threads:4"
  int otherwise = 1;  // how many processes, where `ranks` is "" and nothing else has started some
  int max_restarts = 0;  // of processes that are started here
  // The longest that a rank waits for another.
  std::chrono::milliseconds deadline = std::chrono::minutes(10);
  // All words of this command, which the processes of its ranks get again.
  std::vector<std::string> words = {};
  // Files that these name, which each process reads: none may be a pipe. Some may be empty.
  std::vector<std::string> files = {};
};

// Calls `work` as the ranks say, and returns what it returns (of several threads: rank 0's):
//
// - in a process that a launcher started (torchrun, Slurm, trestle launch) as one rank of several,
//   with that rank's world; `ranks` may be left out, or says the same number;
// - "4": starts this program four times and returns when all have ended (launch/launcher.h);
// - "threads:4": four threads of this process;
// - "": as many processes as `otherwise` says; with no world, on this process alone, where that is 1.
//
// Throws UsageError for words that are none of this. What goes wrong on a rank is said once, by the
// rank that was first to fail, and where ranks are on other machines by rank 0 too; that another rank
// was killed says rank 0. Before the ranks have met, and once rank 0 is gone, each says its own.
int on_ranks(const RankOptions& options, const std::function<int(const World*)>& work);

// How many ranks there are or will be, by a launcher or by RankOptions::ranks; 0 where neither says so. Throws as on_ranks().
int asked_ranks(const RankOptions& options);

// Whether this is one of several processes that a launcher started with the same words, and not the
// one that prints for all what is the same on each: a plan, a list, help.
bool another_rank_prints();
// The same for what is wrong with the words, or with a file that they name: one on each machine says
// it, where a launcher is sure to have given all of them the same.
bool another_rank_complains();

// Throws UsageError in a process that is one of several ranks: this verb knows nothing of the others.
void refuse_on_ranks(const std::string& verb);

}  // namespace trestle::app
