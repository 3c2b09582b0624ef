#include "trestle/cli/ranks.h"

#include <c10/util/Exception.h>

#include <charconv>
#include <filesystem>
#include <iostream>
#include <string_view>
#include <thread>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/cli/exit_codes.h"
#include "trestle/cli/interrupt.h"
#include "trestle/comm/gather.h"
#include "trestle/comm/start_failure.h"
#include "trestle/comm/threads/spawn.h"
#include "trestle/comm/world.h"
#include "trestle/launch/launcher.h"
#include "trestle/launch/rank_environment.h"
#include "trestle/train/usage_check.h"

namespace trestle::cli {

namespace {

constexpr int most_ranks = 1000;

struct RequestedRanks {
  int count = 1;
  bool threads = false;
};

RequestedRanks parse_ranks(const std::string& words) {
  RequestedRanks wanted;
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
                          ", or threads: and a number, not '", words, "'"),
                     {.hint = "For example --ranks 4 (four processes) or --ranks threads:4."});
  return wanted;
}

// "torchrun started this process as rank 0 of 2".
std::string who_started(const launch::RankEnvironment& environment) {
  const bool by_hand = environment.source == "variables";
  return text(by_hand ? "RANK and WORLD_SIZE" : environment.source, by_hand ? " make" : " started",
              " this process ", by_hand ? "" : "as ", "rank ", environment.rank, " of ",
              environment.world_size);
}

void refuse_other_ranks(const launch::RankEnvironment& environment, const RequestedRanks& wanted,
                        const RankOptions& options) {
  if (!options.ranks.empty() && (wanted.threads || wanted.count != environment.world_size))
    throw UsageError(text("--ranks ", options.ranks, ", but ", who_started(environment)),
                     {.hint = environment.source == "variables"
                                  ? "Unset RANK and WORLD_SIZE, or leave --ranks out."
                                  : "Leave --ranks out when a launcher starts the ranks."});
  if (options.max_restarts > 0)
    throw UsageError(
        text("--max-restarts has no effect: ", who_started(environment)),
        {.hint = environment.source == "trestle launch"
                     ? "The launcher restarts the ranks: trestle launch --max-restarts N."
                     : "The launcher restarts the ranks: leave --max-restarts out here."});
}

enum class FailureSource { Own, OtherRank };

// Whether a launcher has started this rank and rank `other` together, so that both print to one
// terminal.
bool share_launcher(const World& world, int other) {
  const int first = world.rank() - world.local_rank();
  return other >= first && other < first + world.local_size() && world.is_on_this_machine(other);
}

// Whether this rank prints the world's failure. One rank of each launcher does: the rank that
// failed, and elsewhere the first one. If a rank has ended without an error message, the first rank
// prints that; if that is the one that has ended, all its neighbours do.
bool prints_failure(const World& world, FailureSource source) {
  const bool is_first = world.local_rank() == 0;
  if (const auto who = world.failed_rank())
    return share_launcher(world, *who) ? *who == world.rank() : is_first;
  const auto why = world.failure();
  const int first = world.rank() - world.local_rank();
  return source == FailureSource::Own || is_first || !why ||
         why->starts_with(text("rank ", first, " ")) || why->starts_with("the launcher");
}

// The result of a rank's work, if it threw nothing: another rank prints the error then.
struct RankEnd {
  int code = 0;
  bool only_heard = false;  // another rank failed
};

RankEnd work_on_rank(const World& world, const std::function<int(const World*)>& work) {
  const std::string where = text("on rank ", world.rank());
  try {
    return {work(&world)};
  } catch (const RankError& error) {  // its message names the rank
    const bool invalid = train::is_usage_error_message(error);
    if (!prints_failure(world, FailureSource::OtherRank))
      return {invalid ? usage_error : failed, true};
    if (invalid) throw UsageError(error.what());
    throw;
  } catch (DeadlineError& error) {  // each rank that waited prints which ranks it waited for
    error.add_context(where);
    throw;
  } catch (UsageError& error) {  // usually the same on all ranks
    train::fail_ranks(world, std::current_exception());
    if (!prints_failure(world, FailureSource::Own)) return {usage_error};
    if (world.rank() != 0) error.add_context(where);
    throw;
  } catch (Error& error) {
    train::fail_ranks(world, std::current_exception());
    if (!prints_failure(world, FailureSource::Own)) return {failed};
    error.add_context(where);
    throw;
  } catch (c10::Error& error) {
    train::fail_ranks(world, std::current_exception());
    if (!prints_failure(world, FailureSource::Own)) return {failed};
    error.add_context(where);
    throw;
  }
}

// A rank that only heard of a failure must exit after the rank that failed: the launcher returns
// the first exit code, and does not restart after a usage error.
void let_failed_rank_end_first() {
  constexpr std::chrono::milliseconds delay{300};
  std::this_thread::sleep_for(delay);
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
    if (environment.rank != 0) let_failed_rank_end_first();
    throw;
  } catch (Error& error) {  // before the ranks have met, each prints its own errors
    if (!have_met) error.add_context(text("on rank ", environment.rank));
    throw;
  }
  if (end.only_heard) let_failed_rank_end_first();
  return end.code;
}

// The ranks' arguments: this process restarts them.
std::vector<std::string> without_max_restarts(const std::vector<std::string>& words) {
  constexpr std::string_view flag = "--max-restarts";
  std::vector<std::string> kept;
  for (std::size_t i = 0; i < words.size(); ++i) {
    if (words[i] == flag)
      ++i;
    else if (!words[i].starts_with(text(flag, "=")))
      kept.push_back(words[i]);
  }
  return kept;
}

// The first rank to read a pipe would get all of it, and all other ranks would wait.
void refuse_pipes(const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    std::error_code error;
    const auto status = std::filesystem::status(file, error);
    if (error || !std::filesystem::exists(status) || std::filesystem::is_regular_file(status))
      continue;
    throw UsageError(
        text(file, ": is a pipe or a device, but each rank has to read it"),
        {.hint = "Write it to a file, or use threads, for example --ranks threads:2."});
  }
}

}  // namespace

int asked_ranks(const RankOptions& options) {
  const int launched = launch::read_rank_environment().world_size;
  if (launched > 1) return launched;
  return options.ranks.empty() ? 0 : parse_ranks(options.ranks).count;
}

int on_ranks(const RankOptions& options, const std::function<int(const World*)>& work) {
  RequestedRanks wanted;
  launch::RankEnvironment environment;
  const bool valid = is_valid_on_all_ranks([&] {
    wanted = parse_ranks(options.ranks);
    environment = launch::read_rank_environment();
    if (environment.world_size > 1) refuse_other_ranks(environment, wanted, options);
  });
  if (!valid) return usage_error;
  if (environment.world_size > 1) return on_launched_rank(environment, options, work);
  if (options.ranks.empty()) wanted.count = options.default_ranks;
  // A single process may start ranks itself, also as the only task of srun.
  if (options.max_restarts > 0 && (wanted.count == 1 || wanted.threads))
    throw UsageError(
        "--max-restarts has no effect without ranks that are processes",
        {.hint = "Leave it out, or add a number of processes, for example --ranks 2."});
  if (wanted.count == 1) return work(nullptr);
  if (options.check) options.check(wanted.count);
  if (wanted.threads) {
    const auto codes = spawn(wanted.count, [&](World& world) { return work(&world); },
                             {.deadline = options.deadline});
    return codes.at(0);
  }
  refuse_pipes(options.files);
  return launch::launch({.program = std::filesystem::read_symlink("/proc/self/exe").string(),
                         .arguments = without_max_restarts(options.words),
                         .ranks = wanted.count,
                         .max_restarts = options.max_restarts,
                         .lines = launch::Lines::Plain});
}

namespace {

// A single rank if the variables are invalid: verbs that do not run on ranks ignore them.
launch::RankEnvironment environment_if_valid() {
  try {
    return launch::read_rank_environment();
  } catch (const UsageError&) {
    return {};
  }
}

}  // namespace

void tell_other_machines(const Error& error) {
  const auto environment = environment_if_valid();
  if (environment.local_rank == 0 && environment.local_size < environment.world_size)
    comm::report_start_failure(environment, error);
}

bool is_valid_on_all_ranks(const std::function<void()>& check) {
  try {
    check();
  } catch (const UsageError& error) {
    tell_other_machines(error);
    if (another_rank_complains()) return false;
    throw;
  }
  return true;
}

bool another_rank_prints() {
  const auto environment = environment_if_valid();
  return environment.rank != 0 && environment.source != "variables";
}

bool another_rank_complains() {
  const auto environment = environment_if_valid();
  return environment.local_rank != 0 &&
         (environment.source == "trestle launch" || environment.source == "torchrun");
}

int code_of_signals(const World* world) {
  const int mine = interrupted() ? interrupted_exit_code() : 0;
  if (world == nullptr) return mine;
  const std::vector<int> codes = comm::all_gather_values(world->group(), mine);
  for (std::size_t rank = 0; rank < codes.size(); ++rank) {
    if (codes[rank] == 0) continue;
    if (mine == 0 && world->rank() == 0)
      std::cerr << "trestle: a signal to rank " << rank << " stopped all ranks\n";
    return mine != 0 ? mine : codes[rank];
  }
  return 0;
}

void refuse_on_ranks(const std::string& verb) {
  const auto environment = environment_if_valid();
  if (environment.world_size == 1) return;
  throw UsageError(
      text("trestle ", verb, " runs on one process, but ", who_started(environment)),
      {.hint = environment.source == "variables"
                   ? "Unset RANK and WORLD_SIZE."
                   : "Start it as one process: several would overwrite each other's "
                     "files. Only trestle train, generate, evaluate and calibrate run on ranks."});
}

}  // namespace trestle::cli
