#pragma once

#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

// Starts a program as the ranks of one run. No torch.
namespace trestle::launch {

// Set for the ranks if the launcher shows their lines on a terminal. Their own standard error is
// then a pipe.
inline constexpr const char* terminal_variable = "TRESTLE_LAUNCH_TERMINAL";

enum class Lines {
  Prefixed,  // "[2] ..." for each line of rank 2
  Plain,     // the ranks inherit the launcher's standard output and error
  Json,      // one JSON object per line on the standard output: starts, lines, exits
};

// The launcher of one machine tells it to the ranks of the other machines.
struct NewsForMachines {
  std::string address = {};  // the rendezvous of the ranks
  int port = 0;
  std::string reason = {};  // "rank 1 (process 4711 on node1) was killed by signal 9 (SIGKILL)"
  // The rank that has ended, and its process: the ranks that work with it must not wait for it.
  int rank = -1, process = 0;
  std::string how = {};  // "was killed by signal 9 (SIGKILL)"
  bool is_end = false;   // this launcher starts no rank again: no rank may wait for its ranks
  bool may_meet_again = false;  // other launchers may restart their ranks
  bool have_met = false;        // all ranks of the last start have met
  // The ranks of the other machines know the reason, or no store took it: one attempt is enough.
  bool is_settled = false;
  int ranks = 1, world_size = 1;  // on each machine, and on all
  // Rank 0 of this machine, which hosts the ranks' store, has ended: if no store answers,
  // tell_machines() hosts one in its place for some seconds, for ranks that wait for it.
  bool hosts_store = false;
};

enum class Binding {
  Cores,  // each rank has its own cores, if there are at least as many cores as ranks
  Off,
};

struct LaunchOptions {
  std::string program = {};                 // searched for in PATH unless it contains '/'
  std::vector<std::string> arguments = {};  // without the program's name
  int ranks = 1;                            // number of ranks on this machine
  int nodes = 1;                            // machines; each has a launcher, with the same `ranks`
  int node_rank = 0;                        // the number of this machine, from 0
  // "HOST" or "HOST:PORT" of node 0, where the ranks meet; the default port is 29500. Empty for one
  // machine: 127.0.0.1 and a free port.
  std::string rendezvous = {};
  // How many times all ranks are restarted after one failed. They are not restarted after exit code
  // 2 (a usage error) nor after Ctrl-C. With several machines a failure restarts the ranks of all
  // of them and counts once; they meet again at the rendezvous.
  int max_restarts = 0;
  // When a rank has failed, the other ranks have `notice` to detect it and report errors. Then they
  // get SIGTERM, and after `grace` SIGKILL.
  std::chrono::milliseconds notice = std::chrono::seconds(1);
  std::chrono::milliseconds grace = std::chrono::seconds(10);
  Lines lines = Lines::Prefixed;
  // If set, the output of rank 2 goes to rank_2.log in this folder, and not to the launcher's
  // output.
  std::filesystem::path log_folder = {};
  Binding binding = Binding::Cores;
  // Called with several machines when a rank has failed, and when the launcher is told to stop. It
  // runs in a child process, which may take some seconds. comm::tell_machines() tells the ranks in
  // their store; without it they wait until their deadline, because this folder has no torch.
  std::function<void(const NewsForMachines&)> tell_machines = {};
};

// Runs the program on `ranks` processes and returns when all have ended. Returns 0, or the exit
// code of the first rank that failed, or 128 + the signal that killed it. Each process gets the
// variables that torchrun sets (rank_environment.h), TRESTLE_LAUNCH=1, and OMP_NUM_THREADS = cores
// / ranks unless that is set. Prints to the standard error which rank failed first, how, and how
// the other ranks ended:
//
//     trestle: rank 2 (process 4711) was killed by signal 9 (SIGKILL) 12.4 s after its start; ranks
//     0, 1, 3 stopped after 0.4 s.
//
// It prints nothing if all ranks exited with code 2 (a usage error): they have printed the reason.
// A rank may exit with 0 while other ranks still run. If all remaining ranks are stopped by a
// signal, they are resumed after 5 seconds. With several machines a rank that has been stopped for
// two seconds longer than the ranks' deadline is resumed, and killed if it does not end: the ranks
// of the other machines have failed without it.
//
// Each rank leads its own process group, which is killed as a whole: at the end, and also if the
// launcher itself is killed. SIGINT, SIGTERM, SIGHUP and SIGQUIT are passed on to all ranks; a
// second one kills them. SIGUSR1, SIGUSR2 and Ctrl-Z are passed on too. Rank 0 reads the launcher's
// standard input unless that is a terminal; all other ranks read /dev/null. When the reader of the
// launcher's output closes it, the ranks' pipes are closed too.
//
// Output is shown in whole lines; lines over 64 KiB are split. A line that is overwritten by
// carriage returns, such as a progress bar, is shown once a second, without control sequences that
// move the cursor.
//
// Throws UsageError for invalid options and for a program that does not exist or cannot be started,
// FileError for errors of the system. It handles SIGCHLD and the signals above while it runs: call
// it in a process without other threads. It may be called again.
int launch(const LaunchOptions& options);

// The commands that launch() would run: one shell command for each rank, one per line.
std::string describe_launch(const LaunchOptions& options);

}  // namespace trestle::launch
