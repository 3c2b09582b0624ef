#include "apps/trestle/ranks.h"

#include <c10/util/Exception.h>

#include <charconv>
#include <filesystem>
#include <string_view>
#include <thread>

#include "apps/trestle/exit_codes.h"
#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/comm/spawn.h"
#include "trestle/comm/world.h"
#include "trestle/launch/launcher.h"
#include "trestle/launch/rank_environment.h"
#include "trestle/train/misuse.h"

namespace trestle::app {

namespace {

constexpr int most_ranks = 1000;

struct Wanted {
  int count = 1;
  bool threads = false;
};

Wanted read_ranks(const std::string& words) {
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

// "torchrun started rank 0 of 2".
std::string who_started(const launch::RankEnvironment& environment) {
  const bool by_hand = environment.source == "variables";
  return text(by_hand ? "RANK and WORLD_SIZE" : environment.source, by_hand ? " make" : " started",
              " this process ", by_hand ? "" : "as ", "rank ", environment.rank, " of ",
              environment.world_size);
}

void refuse_other_ranks(const launch::RankEnvironment& environment, const Wanted& wanted,
                        const RankOptions& options) {
  if (!options.ranks.empty() && (wanted.threads || wanted.count != environment.world_size))
    throw UsageError(text("--ranks ", options.ranks, ", but ", who_started(environment)),
                     {.hint = environment.source == "variables"
                                  ? "Unset RANK and WORLD_SIZE, or leave --ranks out."
                                  : "Leave --ranks out where something else starts the ranks."});
  if (options.max_restarts > 0 && environment.source != "trestle launch")
    throw UsageError(text("--max-restarts has no effect: ", who_started(environment)),
                     {.hint = "Who starts the ranks starts them anew: leave it out here."});
}

// One rank says it: the one that failed, and on several machines the first one too, whose screen is
// the run's. What they found out by themselves, as of a process that was killed, rank 0 says, if it is
// there.
bool speaks(const World& world, bool only_heard) {
  if (const auto who = world.failed_rank())
    return *who == world.rank() || (world.rank() == 0 && world.local_size() < world.size());
  const auto why = world.failure();
  return !only_heard || world.rank() == 0 || !why || why->starts_with("rank 0 ") ||
         why->starts_with("the launcher");
}

// How a rank's work ended: where somebody else says why, it does so without a word.
struct RankEnd {
  int code = 0;
  bool only_heard = false;
};

RankEnd work_on_rank(const World& world, const std::function<int(const World*)>& work) {
  const std::string where = text("on rank ", world.rank());
  try {
    return {work(&world)};
  } catch (const RankError& error) {  // names the rank
    const bool misuse = train::is_misuse(error);
    if (!speaks(world, true)) return {misuse ? misused : failed, true};
    if (misuse) throw UsageError(error.what());
    throw;
  } catch (DeadlineError& error) {  // each that waited in vain says for whom
    error.add_context(where);
    throw;
  } catch (UsageError& error) {  // mostly the same on all
    if (!speaks(world, false)) return {misused};
    if (world.rank() != 0) error.add_context(where);
    throw;
  } catch (Error& error) {
    if (!speaks(world, false)) return {failed};
    error.add_context(where);
    throw;
  } catch (c10::Error& error) {
    if (!speaks(world, false)) return {failed};
    error.add_context(where);
    throw;
  }
}

// Who only heard that another one failed ends behind it: the first exit code is the whole run's, and
// 2, for what cannot be, is not started anew.
void let_others_end() {
  constexpr std::chrono::milliseconds for_the_first_to_end{300};
  std::this_thread::sleep_for(for_the_first_to_end);
}

int on_launched_rank(const launch::RankEnvironment& environment, const RankOptions& options,
                     const std::function<int(const World*)>& work) {
  RankEnd end;
  bool have_met = false;
  try {
    const World world = init({.deadline = options.deadline, .environment = environment});
    have_met = true;
    end = work_on_rank(world, work);
  } catch (RankError& error) {
    if (!have_met) error.add_context(text("on rank ", environment.rank));
    if (environment.rank != 0) let_others_end();
    throw;
  } catch (Error& error) {  // until they have met none speaks for another
    if (!have_met) error.add_context(text("on rank ", environment.rank));
    throw;
  }
  if (end.only_heard) let_others_end();
  return end.code;
}

// Who read it first has all of it, and the others wait for the rest.
void refuse_pipes(const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    std::error_code error;
    const auto status = std::filesystem::status(file, error);
    if (error || !std::filesystem::exists(status) || std::filesystem::is_regular_file(status))
      continue;
    throw UsageError(text(file, ": is a pipe or a device, and each rank reads it anew"),
                     {.hint = "Write it into a file, or let the ranks be threads, for example "
                              "--ranks threads:2."});
  }
}

}  // namespace

int asked_ranks(const RankOptions& options) {
  const int launched = launch::read_rank_environment().world_size;
  if (launched > 1) return launched;
  return options.ranks.empty() ? 0 : read_ranks(options.ranks).count;
}

int on_ranks(const RankOptions& options, const std::function<int(const World*)>& work) {
  Wanted wanted;
  launch::RankEnvironment environment;
  try {
    wanted = read_ranks(options.ranks);
    environment = launch::read_rank_environment();
    if (environment.world_size > 1) refuse_other_ranks(environment, wanted, options);
  } catch (const UsageError&) {
    if (another_rank_complains()) return misused;
    throw;
  }
  if (environment.world_size > 1) return on_launched_rank(environment, options, work);
  if (options.ranks.empty()) wanted.count = options.otherwise;
  // Alone, also as the only task of srun, whose shell says so: that one may start ranks of its own.
  if (options.max_restarts > 0 && (wanted.count == 1 || wanted.threads))
    throw UsageError("--max-restarts has no effect without ranks that are processes",
                     {.hint = "Leave it out, or give --ranks a number of them, for example 2."});
  if (wanted.count == 1) return work(nullptr);
  if (wanted.threads) {
    const auto codes = spawn(wanted.count, [&](World& world) { return work(&world); },
                             {.deadline = options.deadline});
    return codes.at(0);
  }
  refuse_pipes(options.files);
  return launch::launch({.program = std::filesystem::read_symlink("/proc/self/exe").string(),
                         .arguments = options.words,
                         .ranks = wanted.count,
                         .max_restarts = options.max_restarts,
                         .lines = launch::Lines::Plain});
}

namespace {

// One lone rank where the variables are wrong: they are of no matter to what does not run on ranks.
launch::RankEnvironment environment_if_right() {
  try {
    return launch::read_rank_environment();
  } catch (const UsageError&) {
    return {};
  }
}

}  // namespace

bool another_rank_prints() {
  const auto environment = environment_if_right();
  return environment.rank != 0 && environment.source != "variables";
}

bool another_rank_complains() {
  const auto environment = environment_if_right();
  return environment.local_rank != 0 &&
         (environment.source == "trestle launch" || environment.source == "torchrun");
}

void refuse_on_ranks(const std::string& verb) {
  const auto environment = environment_if_right();
  if (environment.world_size == 1) return;
  throw UsageError(text("trestle ", verb, " runs on one process, but ", who_started(environment)),
                   {.hint = environment.source == "variables"
                                ? "Unset RANK and WORLD_SIZE."
                                : "Start it alone: each rank would do the same, over the others' "
                                  "files. On ranks runs trestle train."});
}

}  // namespace trestle::app
