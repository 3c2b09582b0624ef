#pragma once

#include <chrono>
#include <filesystem>
#include <string>
#include <vector>

// Starts a program several times as the ranks of one run. No torch.
namespace trestle::launch {

enum class Lines {
  Prefixed,  // "[2] ..." for each line of rank 2
  Plain,     // the ranks write to where the launcher does, by themselves
  Json,      // one object a line on the standard output: starts, lines, endings
};

enum class Binding {
  Cores,  // each rank has cores of its own, where there are as many cores as ranks
  Off,
};

struct LaunchOptions {
  std::string program;                      // without '/' it is looked for in PATH
  std::vector<std::string> arguments = {};  // behind the program's name
  int ranks = 1;                            // of this machine
  int nodes = 1;                            // machines; each has a launcher, with the same `ranks`
  int node_rank = 0;                        // which of them this is, from 0
  // "HOST" or "HOST:PORT" of node 0, where the ranks find each other; without a port 29500. Empty for
  // one machine: 127.0.0.1 and a port that is free.
  std::string rendezvous = {};
  // How often all ranks are started anew after one failed: not where it ended with code 2, which says
  // that it was asked for something that cannot be, nor after Ctrl-C.
  int max_restarts = 0;
  // When a rank has failed the others have `notice` to see it and to say so, then they get SIGTERM,
  // and after `grace` SIGKILL.
  std::chrono::milliseconds notice = std::chrono::seconds(1);
  std::chrono::milliseconds grace = std::chrono::seconds(10);
  Lines lines = Lines::Prefixed;
  // Not empty: what rank 2 writes goes into rank_2.log of this folder, and is not shown.
  std::filesystem::path log_folder = {};
  Binding binding = Binding::Cores;
};

// Runs PROGRAM on `ranks` processes and returns when all have ended: 0, or the exit code of the first
// that failed, 128 + the signal if one ended it. Each gets the variables that torchrun sets (see
// rank_environment.h), TRESTLE_LAUNCH=1, and OMP_NUM_THREADS = cores / ranks unless that is set. Says on
// the standard error which rank failed first, how, and what became of the others:
//
//     trestle: rank 2 (process 4711) was killed by signal 9 (SIGKILL) 12.4 s after its start; ranks 0, 1,
//     3 stopped after 0.4 s.
//
// but not where all ended with code 2, by which programs say that they were asked for something that
// cannot be: then they have said what. A rank that ends with 0 while others work on is none of its business; where all that are left are
// stopped by a signal, they are told to go on after 5 seconds. Each rank leads a process group
// of its own, which is killed as a whole: at the end, and also where the launcher itself is killed.
// SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to all of them; a second one kills them. SIGUSR1,
// SIGUSR2 and Ctrl-Z are passed on too. Rank 0 reads the launcher's standard input, if that is no
// terminal; the others read nothing. Where the reader of the launcher's output has gone, the ranks'
// pipes are closed, as if they had written to it themselves.
//
// Of a rank's output whole lines are shown, those longer than 64 KiB in pieces. A line that is drawn over
// by carriage returns, as bars are, is shown once a second; what moves the cursor is left out.
//
// Throws UsageError for options that cannot be and for a program that is not there or cannot be started,
// FileError where the system refuses. While it runs, SIGCHLD and the signals above are its own: call it
// in a process without other threads. It may be called again.
int launch(const LaunchOptions& options);

// What launch() would start: a command of the shell for each rank, one a line.
std::string describe_launch(const LaunchOptions& options);

}  // namespace trestle::launch
