// launch_helper [flags] -- PROGRAM ARGUMENTS: calls launch().
// launch_helper who: prints this rank's environment and the cores that it may use.
// launch_helper self RANKS HOW WORDS...: calls run_as_ranks(); each rank prints its words, and then
// ends as HOW says.
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <iostream>
#include <string>
#include <thread>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/launch/cores.h"
#include "trestle/launch/launcher.h"
#include "trestle/launch/rank_environment.h"
#include "trestle/launch/run_as_ranks.h"

namespace {

using trestle::launch::LaunchOptions;

int say_who() {
  const auto found = trestle::launch::read_rank_environment();
  const char* threads = std::getenv("OMP_NUM_THREADS");
  std::cout << found.source << " rank " << found.rank << "/" << found.world_size << " local "
            << found.local_rank << "/" << found.local_size << " node " << found.node << " at "
            << found.address << ":" << found.port << " restart " << found.restart << " store "
            << found.store_of_launcher << " threads " << (threads == nullptr ? "-" : threads)
            << " cores " << trestle::join(trestle::launch::allowed_cores(), ",") << std::endl;
  return 0;
}

LaunchOptions read(int argc, char** argv) {
  LaunchOptions options;
  int at = 1;
  for (; at < argc && std::string(argv[at]) != "--"; ++at) {
    const std::string flag = argv[at];
    const auto value = [&] { return std::string(argv[++at]); };
    if (flag == "-n")
      options.ranks = std::stoi(value());
    else if (flag == "--grace-ms")
      options.grace = std::chrono::milliseconds(std::stoi(value()));
    else if (flag == "--notice-ms")
      options.notice = std::chrono::milliseconds(std::stoi(value()));
    else if (flag == "--max-restarts")
      options.max_restarts = std::stoi(value());
    else if (flag == "--nodes")
      options.nodes = std::stoi(value());
    else if (flag == "--node-rank")
      options.node_rank = std::stoi(value());
    else if (flag == "--rendezvous")
      options.rendezvous = value();
    else if (flag == "--log-folder")
      options.log_folder = value();
    else if (flag == "--plain")
      options.lines = trestle::launch::Lines::Plain;
    else if (flag == "--json")
      options.lines = trestle::launch::Lines::Json;
    else if (flag == "--unbound")
      options.binding = trestle::launch::Binding::Off;
  }
  if (++at < argc) options.program = argv[at];
  for (++at; at < argc; ++at) options.arguments.emplace_back(argv[at]);
  return options;
}

// HOW is "end", "fail" (rank 1 exits with code 7, all other ranks wait) or "wait".
int start_itself(int argc, char** argv) {
  if (const auto code = trestle::launch::run_as_ranks(std::stoi(argv[2]))) return *code;
  const auto found = trestle::launch::read_rank_environment();
  std::string line =
      trestle::text("rank ", found.rank, " of ", found.world_size, " pid ", getpid());
  for (int at = 4; at < argc; ++at) line += trestle::text(" <", argv[at], ">");
  std::cout << line << std::endl;
  const std::string how = argv[3];
  if (how == "fail" && found.rank == 1) return 7;
  if (how != "end") std::this_thread::sleep_for(std::chrono::seconds(60));
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc == 2 && std::string(argv[1]) == "who") return say_who();
  try {
    if (argc >= 4 && std::string(argv[1]) == "self") return start_itself(argc, argv);
    return trestle::launch::launch(read(argc, argv));
  } catch (const trestle::UsageError& error) {
    std::cerr << "trestle: " << error.what() << std::endl;
    return 2;
  } catch (const trestle::Error& error) {
    std::cerr << "trestle: " << error.what() << std::endl;
    return 1;
  }
}
