#include "trestle/launch/launcher.h"

#include <poll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <csignal>
#include <deque>
#include <optional>
#include <system_error>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/base/units.h"
#include "trestle/launch/guard.h"
#include "trestle/launch/messenger.h"
#include "trestle/launch/notes.h"
#include "trestle/launch/output.h"
#include "trestle/launch/rank_command.h"
#include "trestle/launch/rank_process.h"
#include "trestle/launch/signal_source.h"

namespace trestle::launch {

namespace {

using Clock = std::chrono::steady_clock;

constexpr Stream streams[] = {Stream::Out, Stream::Err};

// The first failure after one start of all ranks.
struct Failure {
  const RankProcess* first = nullptr;
  std::vector<int> others = {};  // ranks that were still running
  Stopwatch since = {};
  double others_took = 0;  // seconds until the last of them ended
};

class Launcher {
 public:
  Launcher(const LaunchOptions& options, std::string program)
      : options_(options),
        program_(std::move(program)),
        output_(options.lines),
        messenger_(options) {}
  int run();

 private:
  void start(int restart);
  void watch();
  void drain_output();
  void poll_once(Clock::duration longest);
  void handle_signal(int signal);
  void note_exits();
  void note_failure(const RankProcess& rank);
  void tell(const NewsForMachines& news);
  void read_notes();
  bool may_restart(int code) const;
  bool is_settled(const ExitStatus& first) const;
  void act_on_deadlines();
  void resume_last_stopped();
  void end_stopped_for_long();
  void send(int signal);
  void flush();
  bool any_alive() const;
  bool shows_lines_on_terminal() const;
  bool ended_as_requested(const RankProcess& rank) const;
  bool all_reported_usage_errors() const;
  Clock::duration time_left() const;
  std::string message() const;
  int finish(int code, const std::string& words);

  const LaunchOptions& options_;
  const std::string program_;
  Output output_;
  SignalSource signals_;
  Guard guard_;
  NoteReader note_reader_;
  Messenger messenger_;
  std::optional<NewsForMachines> end_;        // that this launcher starts no rank again
  std::optional<std::string> end_elsewhere_;  // why another machine's launcher has ended
  int restart_ = 0;
  bool have_met_ = false;
  bool is_settled_ = false;  // as Notes has it
  std::optional<std::chrono::milliseconds> deadline_of_ranks_;
  bool ends_stopped_ = false;  // a rank was stopped longer than the other machines wait for it
  std::deque<RankProcess> ranks_;
  std::optional<Failure> failure_;
  int start_failure_ = 0;  // errno
  int stopped_by_ = 0;     // the first termination signal
  Clock::time_point stopped_at_ = {};
  bool terminated_ = false;
  std::optional<Clock::time_point> deadline_;   // for SIGTERM, then SIGKILL, then giving up
  std::optional<Stopwatch> all_stopped_since_;  // while all remaining ranks are stopped
};

bool Launcher::any_alive() const {
  return std::any_of(ranks_.begin(), ranks_.end(),
                     [](const RankProcess& rank) { return !rank.ended(); });
}

// Whether it succeeded, or ended by a signal that the launcher sent.
bool Launcher::ended_as_requested(const RankProcess& rank) const {
  if (rank.exit_status().success() || (rank.killed() && !ends_stopped_)) return true;
  return stopped_by_ != 0 && rank.exit_status().exit_code() == 128 + stopped_by_;
}

// A program that exits with this code has printed what was invalid.
bool Launcher::all_reported_usage_errors() const {
  return std::all_of(ranks_.begin(), ranks_.end(), [](const RankProcess& rank) {
    return rank.ended() && rank.exit_status().exit_code() == usage_error;
  });
}

bool Launcher::shows_lines_on_terminal() const {
  return options_.lines == Lines::Prefixed && options_.log_folder.empty() &&
         isatty(STDERR_FILENO) == 1;
}

void Launcher::start(int restart) {
  ranks_.clear();
  failure_.reset();
  have_met_ = is_settled_ = ends_stopped_ = false;
  deadline_.reset();
  terminated_ = false;
  const StartContext context{
      .options = options_, .program = program_, .signals = signals_, .restart = restart};
  for (RankCommand& command : rank_commands(options_, rendezvous_of(options_), restart)) {
    // Empty on one machine: a launcher may be a rank of another launcher.
    command.variables.emplace_back(NoteReader::variable,
                                   options_.nodes > 1 ? note_reader_.path() : "");
    if (shows_lines_on_terminal()) command.variables.emplace_back(terminal_variable, "1");
    RankProcess& rank = ranks_.emplace_back(command, context);
    guard_.watch(rank.process());
    output_.started(rank.rank(), rank.process(), restart);
  }
}

void Launcher::send(int signal) {
  for (RankProcess& rank : ranks_)
    if (!rank.ended()) rank.send(signal);
}

void Launcher::handle_signal(int signal) {
  if (signal == SIGCHLD) return note_exits();
  if (signal == SIGTSTP) {
    send(SIGTSTP);
    kill(getpid(), SIGSTOP);  // returns when the shell sends SIGCONT
    return send(SIGCONT);
  }
  if (!is_termination_signal(signal)) return send(signal);
  // `timeout` and some job managers send a signal to a process and again to its group.
  constexpr auto together = std::chrono::milliseconds(300);
  if (signal == stopped_by_ && Clock::now() - stopped_at_ < together) return;
  if (stopped_by_ != 0) {
    output_.say(text("second signal, ", signal_name(signal), ": killing all ranks"));
    return send(SIGKILL);
  }
  stopped_by_ = signal;
  stopped_at_ = Clock::now();
  send(signal);
  read_notes();
  tell({.reason = text("signal ", signal_name(signal), " stopped the launcher on ", host_name()),
        .is_end = true,
        .have_met = have_met_});
  output_.say(
      text("signal ", signal_name(signal), " passed on to all ranks; a second one kills them"));
}

void Launcher::note_failure(const RankProcess& rank) {
  failure_ = Failure{.first = &rank};
  for (const RankProcess& other : ranks_)
    if (!other.ended()) failure_->others.push_back(other.rank());
  deadline_ = Clock::now() + options_.notice;
  if (stopped_by_ != 0) return;
  read_notes();
  tell({.reason = text("rank ", rank.rank(), " (process ", rank.process(), " on ", host_name(),
                       ") ", describe(rank.exit_status())),
        .rank = rank.rank(),
        .process = rank.process(),
        .how = describe(rank.exit_status()),
        .is_end = !may_restart(rank.exit_status().exit_code()),
        .have_met = have_met_,
        .is_settled = is_settled(rank.exit_status())});
}

void Launcher::tell(const NewsForMachines& news) {
  messenger_.tell(news);
  if (news.is_end && !end_) end_ = news;
}

void Launcher::read_notes() {
  Notes notes = note_reader_.read();
  if (notes.restart) {
    have_met_ = true;
    restart_ = std::max(restart_, *notes.restart);
  }
  if (notes.end && !end_elsewhere_) end_elsewhere_ = std::move(notes.end);
  is_settled_ |= notes.is_settled;
  if (notes.deadline) deadline_of_ranks_ = notes.deadline;
}

// Whether the ranks of the other machines need no news of this failure. With restarts they may come
// again, unless they have read that this start is invalid: that restarts no rank.
bool Launcher::is_settled(const ExitStatus& first) const {
  if (!is_settled_ || first.signal != 0) return false;
  return options_.max_restarts == 0 || (!have_met_ && first.exit_code() == usage_error);
}

bool Launcher::may_restart(int code) const {
  return restart_ < options_.max_restarts && stopped_by_ == 0 && code != usage_error &&
         !end_elsewhere_ && start_failure_ == 0;
}

void Launcher::note_exits() {
  const RankProcess* failed = nullptr;
  for (RankProcess& rank : ranks_) {
    if (!rank.poll_exit()) continue;
    output_.ended(rank.rank(), rank.exit_status(), rank.seconds());
    if (rank.start_failure() != 0) start_failure_ = rank.start_failure();
    if (failure_) failure_->others_took = failure_->since.seconds();
    if (ended_as_requested(rank)) continue;
    // If several ranks ended since the last poll, one that was killed is more likely the cause.
    if (failed == nullptr || (failed->exit_status().signal == 0 && rank.exit_status().signal != 0))
      failed = &rank;
  }
  if (start_failure_ != 0) send(SIGKILL);
  if (failed != nullptr && !failure_) note_failure(*failed);
}

void Launcher::act_on_deadlines() {
  if (!deadline_ || Clock::now() < *deadline_) return;
  if (!terminated_ && options_.grace.count() > 0) {
    terminated_ = true;
    send(SIGTERM);
    send(SIGCONT);  // a stopped process cannot handle SIGTERM
    deadline_ = Clock::now() + options_.grace;
    return;
  }
  constexpr auto time_for_kernel = std::chrono::seconds(10);
  const bool killed = std::any_of(ranks_.begin(), ranks_.end(), [](const RankProcess& rank) {
    return !rank.ended() && rank.killed();
  });
  if (!killed) {
    send(SIGKILL);
    deadline_ = Clock::now() + time_for_kernel;
    return;
  }
  for (RankProcess& rank : ranks_) {
    if (rank.ended()) continue;
    output_.say(text("rank ", rank.rank(), " (process ", rank.process(),
                     ") did not exit after SIGKILL; the launcher gives up on it"));
    rank.abandon();
  }
}

// A rank that was stopped after its last message blocks no other rank, so no deadline ends it. The
// launcher resumes it.
void Launcher::resume_last_stopped() {
  constexpr double patience = 5;  // seconds
  bool ended = false, all_stopped = true;
  for (const RankProcess& rank : ranks_) {
    ended |= rank.ended();
    all_stopped &= rank.ended() || rank.is_stopped();
  }
  if (failure_ || !ended || !all_stopped || !any_alive()) return all_stopped_since_.reset();
  if (!all_stopped_since_) all_stopped_since_.emplace();
  if (all_stopped_since_->seconds() < patience) return;
  all_stopped_since_.reset();
  for (RankProcess& rank : ranks_) {
    if (rank.ended()) continue;
    output_.say(text("rank ", rank.rank(), " (process ", rank.process(),
                     ") is stopped and all other ranks have ended: resuming it with SIGCONT"));
    rank.send(SIGCONT);
  }
}

// The ranks of the other machines have failed at their deadline, and no rank of this machine can
// notice that while all of them are stopped. Resumed, they do, and end with the reason.
void Launcher::end_stopped_for_long() {
  constexpr auto grace = std::chrono::seconds(2);  // in which the other ranks end
  if (options_.nodes == 1 || failure_ || deadline_) return;
  for (RankProcess& rank : ranks_) {
    const auto stopped = rank.stopped_for();
    if (stopped.count() == 0) continue;
    read_notes();
    if (!deadline_of_ranks_ || stopped < *deadline_of_ranks_ + grace) continue;
    output_.say(text("rank ", rank.rank(), " (process ", rank.process(), ") has been stopped for ",
                     format_duration(stopped.count()), ", and the other ranks wait ",
                     format_duration(std::chrono::duration<double>(*deadline_of_ranks_).count()),
                     " for it: it is resumed with SIGCONT, so that it ends too"));
    send(SIGCONT);
    ends_stopped_ = true;
    deadline_ = Clock::now() + options_.notice + grace;
    return;
  }
}

Clock::duration Launcher::time_left() const {
  constexpr auto forever = std::chrono::hours(1);
  constexpr auto very_soon = std::chrono::milliseconds(200);
  constexpr auto soon = std::chrono::seconds(1);
  const bool some_ended = std::any_of(ranks_.begin(), ranks_.end(),
                                      [](const RankProcess& rank) { return rank.ended(); });
  const bool some_stopped = std::any_of(ranks_.begin(), ranks_.end(),
                                        [](const RankProcess& rank) { return rank.is_stopped(); });
  if (!deadline_ && some_stopped) return very_soon;
  if (!deadline_) return some_ended ? Clock::duration(soon) : Clock::duration(forever);
  return std::max<Clock::duration>(*deadline_ - Clock::now(), Clock::duration::zero());
}

void Launcher::poll_once(Clock::duration longest) {
  std::vector<pollfd> waiting = {{signals_.descriptor(), POLLIN, 0},
                                 {output_.waits(Stream::Out) ? STDOUT_FILENO : -1, POLLOUT, 0},
                                 {output_.waits(Stream::Err) ? STDERR_FILENO : -1, POLLOUT, 0}};
  for (RankProcess& rank : ranks_) {
    for (const Stream stream : streams) {
      const Stream to = output_.stream_for(stream);
      if (output_.is_lost(to)) rank.stop_reading(stream);
      waiting.push_back({output_.is_full(to) ? -1 : rank.descriptor(stream), POLLIN, 0});
    }
  }
  const auto milliseconds = std::chrono::ceil<std::chrono::milliseconds>(longest).count();
  if (poll(waiting.data(), waiting.size(), static_cast<int>(milliseconds)) <= 0) return;
  if (waiting[1].revents != 0) output_.write_some(Stream::Out);
  if (waiting[2].revents != 0) output_.write_some(Stream::Err);
  std::size_t at = 3;
  for (RankProcess& rank : ranks_)
    for (const Stream stream : streams)
      if (waiting[at++].revents != 0) rank.read_some(stream, output_);
  while (const auto signal = signals_.next()) handle_signal(*signal);
}

void Launcher::watch() {
  while (any_alive()) {
    poll_once(time_left());
    act_on_deadlines();
    resume_last_stopped();
    end_stopped_for_long();
  }
}

// A child process of a rank may still be writing.
void Launcher::drain_output() {
  const auto until = Clock::now() + std::chrono::milliseconds(500);
  const auto has_open = [](const RankProcess& rank) {
    return rank.descriptor(Stream::Out) >= 0 || rank.descriptor(Stream::Err) >= 0;
  };
  while (Clock::now() < until && std::any_of(ranks_.begin(), ranks_.end(), has_open))
    poll_once(until - Clock::now());
  for (RankProcess& rank : ranks_) rank.finish(output_);
}

std::string Launcher::message() const {
  const RankProcess& first = *failure_->first;
  std::vector<int> stopped, killed;
  for (const RankProcess& rank : ranks_) {
    const auto& others = failure_->others;
    if (std::find(others.begin(), others.end(), rank.rank()) == others.end()) continue;
    (rank.killed() ? killed : stopped).push_back(rank.rank());
  }
  std::string words = text("rank ", first.rank(), " (process ", first.process(), ") ",
                           describe(first.exit_status()), ", ", format_duration(first.seconds()),
                           " after its start");
  if (!stopped.empty())
    words += text("; ", describe_ranks(stopped), " stopped after ",
                  format_duration(failure_->others_took));
  if (!killed.empty())
    words += text("; ", describe_ranks(killed), " did not stop within ",
                  format_duration(std::chrono::duration<double>(options_.grace).count()), " and ",
                  killed.size() == 1 ? "was" : "were", " killed");
  return words + ".";
}

// Waits until all output is written, or until a termination signal.
void Launcher::flush() {
  while (output_.waits(Stream::Out) || output_.waits(Stream::Err)) {
    output_.write_all(signals_.descriptor());
    while (const auto signal = signals_.next())
      if (is_termination_signal(*signal)) return;
  }
}

int Launcher::finish(int code, const std::string& words) {
  output_.done(code, words);
  const bool may_wait = options_.max_restarts > 0 || !have_met_;
  const bool all_know = (stopped_by_ != 0 && have_met_) ||  // their world's store has told them
                        (failure_ && is_settled(failure_->first->exit_status()));
  if (end_ && options_.node_rank == 0 && may_wait && !all_know) {
    end_->hosts_store = true;
    messenger_.tell(*end_);
  }
  if (!words.empty() && !all_reported_usage_errors()) output_.say(words);
  flush();
  const std::string lost = output_.why_lost(Stream::Out);
  if (lost.empty()) return code;
  output_.say("the output could not be written: " + lost);
  flush();
  return code == 0 ? 1 : code;
}

int Launcher::run() {
  for (;; ++restart_) {
    start(restart_);
    watch();
    drain_output();
    if (start_failure_ != 0) {
      flush();
      throw UsageError(
          text(program_, ": cannot be started: ", std::generic_category().message(start_failure_)),
          {.hint =
               start_failure_ == ENOEXEC ? "A script begins with a line such as #!/bin/sh." : ""});
    }
    if (!failure_) {
      const bool all_well = std::all_of(ranks_.begin(), ranks_.end(), [](const RankProcess& rank) {
        return rank.ended() && rank.exit_status().success();
      });
      return finish(all_well ? 0 : 128 + stopped_by_, "");
    }
    read_notes();
    const int code = failure_->first->exit_status().exit_code();
    if (!may_restart(code)) {
      std::string words = message();
      if (end_elsewhere_ && options_.max_restarts > 0)
        words += text("\n  It is not restarted: ", *end_elsewhere_, ".");
      if (failure_->first->exit_status().signal == SIGKILL && !failure_->first->killed())
        words += "\n  Perhaps the machine was out of memory.";
      return finish(code, words);
    }
    output_.say(text(message(), " Restarting all ranks (restart ", restart_ + 1, " of ",
                     options_.max_restarts, ")."));
  }
}

}  // namespace

int launch(const LaunchOptions& options) {
  check_options(options);
  std::string program;
  try {
    program = find_program(options.program);
    if (!options.log_folder.empty()) {
      std::error_code error;
      std::filesystem::create_directories(options.log_folder, error);
      if (error) throw FileError(error.message(), {.file = options.log_folder.string()});
    }
  } catch (const Error& error) {
    Messenger(options).tell(
        {.reason = text("the launcher on ", host_name(), " starts no rank: ", error.what()),
         .is_end = true});
    throw;
  }
  return Launcher(options, std::move(program)).run();
}

}  // namespace trestle::launch
