#pragma once

#include <optional>

#include "trestle/launch/launcher.h"

// A program that starts its own ranks. No torch.
namespace trestle::launch {

// Call it first in main(), before other threads exist. In a process that no launcher has started,
// it runs this program again as `ranks` processes, with the same command line, and returns the
// program's exit code when all of them have ended. In each of these processes it returns nothing,
// and the program continues as one rank:
//
//   int main() {
//     if (const auto code = trestle::launch::run_as_ranks(4)) return *code;
//     return train();   // on each of four ranks, with the world of trestle::init()
//   }
//
// This is torch.multiprocessing.spawn() for a whole program: a process begins at main(), and not at
// a function. Output, signals and exit codes are those of launch(); `options` are its options, of
// which `program` and `arguments` must be empty.
//
// It also returns nothing in a rank of torchrun, `trestle launch`, Slurm or MPI, whose number of
// ranks counts then, and for one rank on one machine. A single task of Slurm or MPI starts ranks;
// a single process with RANK and WORLD_SIZE does not.
//
// The program is the file of this process (/proc/self/exe), and the command line is the one that
// the process was started with (/proc/self/cmdline). So an interpreter or a debugger that runs the
// program is not started again. Throws what launch() and read_rank_environment() throw.
std::optional<int> run_as_ranks(int ranks);
std::optional<int> run_as_ranks(LaunchOptions options);

}  // namespace trestle::launch
