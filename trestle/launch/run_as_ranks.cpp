#include "trestle/launch/run_as_ranks.h"

#include <filesystem>
#include <system_error>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/launch/rank_environment.h"

namespace trestle::launch {

namespace {

// A launcher that was told to start one process means one rank. Slurm and MPI set their variables
// also in an interactive shell.
bool is_rank(const RankEnvironment& environment) {
  const std::string& source = environment.source;
  return environment.world_size > 1 || source == "trestle launch" || source == "torchrun" ||
         source == "variables";
}

std::string own_program() {
  std::error_code error;
  const auto file = std::filesystem::read_symlink("/proc/self/exe", error);
  if (error)
    throw FileError(text("/proc/self/exe: ", error.message()),
                    {.hint = "Without /proc a launcher must start the ranks."});
  return file.string();
}

// The words after the program's name. Each ends with a zero byte, also the last one.
std::vector<std::string> own_arguments() {
  std::vector<std::string> words = split(read_file("/proc/self/cmdline"), '\0');
  if (!words.empty()) words.pop_back();
  if (!words.empty()) words.erase(words.begin());
  return words;
}

}  // namespace

std::optional<int> run_as_ranks(LaunchOptions options) {
  if (!options.program.empty() || !options.arguments.empty())
    throw UsageError("run_as_ranks() starts this program with this command line",
                     {.hint = "Leave LaunchOptions::program and arguments empty, or call "
                              "launch() for another program."});
  if (is_rank(read_rank_environment())) return std::nullopt;
  if (options.ranks == 1 && options.nodes == 1) return std::nullopt;
  options.program = own_program();
  options.arguments = own_arguments();
  return launch(options);
}

std::optional<int> run_as_ranks(int ranks) { return run_as_ranks(LaunchOptions{.ranks = ranks}); }

}  // namespace trestle::launch
