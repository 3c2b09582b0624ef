#include "apps/trestle/ranks.h"

#include <charconv>
#include <filesystem>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/spawn.h"
#include "trestle/comm/world.h"
#include "trestle/launch/launcher.h"
#include "trestle/launch/rank_environment.h"

namespace trestle::app {

namespace {

constexpr int misused = 2;
constexpr int most_ranks = 1000;

struct Wanted {
  int count = 1;
  bool threads = false;
};

Wanted read(const std::string& words) {
  Wanted wanted;
  if (words.empty()) return wanted;
  std::string_view number = words;
  constexpr std::string_view threads = "threads:";
  if (number.starts_with(threads)) {
    wanted.threads = true;
    number.remove_prefix(threads.size());
  }
  const auto [end, error] =
      std::from_chars(number.data(), number.data() + number.size(), wanted.count);
  if (error != std::errc() || end != number.data() + number.size() || wanted.count < 1 ||
      wanted.count > most_ranks)
    throw UsageError(text("--ranks takes a number from 1 to ", most_ranks,
                          ", or threads: and one, not '", words, "'"),
                     {.hint = "For example --ranks 4, four processes, or --ranks threads:4."});
  return wanted;
}

int on_launched_rank(const launch::RankEnvironment& environment, const Wanted& wanted,
                     const RankOptions& options, const std::function<int(const World*)>& work) {
  if (!options.ranks.empty() && (wanted.threads || wanted.count != environment.world_size))
    throw UsageError(
        text("--ranks ", options.ranks, ", but this process is rank ", environment.rank, " of the ",
             environment.world_size, " that ", environment.source, " started"),
        {.hint = "Leave --ranks out where something else starts the ranks."});
  if (environment.world_size == 1) return work(nullptr);
  try {
    const World world = init({.deadline = options.deadline, .environment = environment});
    return work(&world);
  } catch (const UsageError&) {  // as all others say it, or rank 0 for this one
    if (environment.rank == 0) throw;
    return misused;
  } catch (Error& error) {
    error.add_context(text("on rank ", environment.rank));
    throw;
  }
}

}  // namespace

int on_ranks(const RankOptions& options, const std::function<int(const World*)>& work) {
  const Wanted wanted = read(options.ranks);
  const auto environment = launch::read_rank_environment();
  if (environment.source != "one rank") return on_launched_rank(environment, wanted, options, work);
  if (wanted.count == 1) return work(nullptr);
  if (wanted.threads) {
    const auto codes = spawn(wanted.count, [&](World& world) { return work(&world); },
                             {.deadline = options.deadline});
    return codes.at(0);
  }
  return launch::launch({.program = std::filesystem::read_symlink("/proc/self/exe").string(),
                         .arguments = options.words,
                         .ranks = wanted.count,
                         .max_restarts = options.max_restarts,
                         .lines = launch::Lines::Plain});
}

}  // namespace trestle::app
