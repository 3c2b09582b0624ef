#include "trestle/comm/processes/watcher.h"

#include <algorithm>
#include <exception>
#include <utility>

#include "trestle/base/text.h"
#include "trestle/comm/completion.h"
#include "trestle/comm/processes/log_silencer.h"
#include "trestle/launch/exit_status.h"
#include "trestle/launch/notes.h"

namespace trestle::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds poll_interval{250}, final_poll_interval{20};
constexpr milliseconds shortest_silence{1000};
// How long the store's host keeps the store alive after a failure, so that other ranks can read it.
constexpr milliseconds time_to_read_failure{1000};
constexpr const char *failure_key = "failure", *end_key = "end";

milliseconds since(steady_clock::time_point time) {
  return std::chrono::duration_cast<milliseconds>(steady_clock::now() - time);
}

std::string heartbeat_key(std::size_t rank) { return text("beat/", rank); }

bool is_goodbye_heartbeat(const std::vector<std::string>& heartbeat) {
  return heartbeat.size() > 1 && heartbeat[1] == "d";
}

std::string as_string(const std::vector<std::uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

}  // namespace

void ProcessControlPlane::prepare(c10d::Store& store, int rank) {
  store.set(heartbeat_key(static_cast<std::size_t>(rank)), "0\tr\t0\t");
  store.compareSet(failure_key, "", "");
}

bool ProcessControlPlane::has_left(c10d::Store& store, int rank) {
  const std::string key = heartbeat_key(static_cast<std::size_t>(rank));
  return store.check({key}) && is_goodbye_heartbeat(split(as_string(store.get(key)), '\t'));
}

bool ProcessControlPlane::has_failed(c10d::Store& store) {
  return store.check({failure_key}) && !store.get(failure_key).empty();
}

void ProcessControlPlane::report_end(c10d::Store& store, int rank, const std::string& how) {
  const auto heartbeat =
      split(as_string(store.get(heartbeat_key(static_cast<std::size_t>(rank)))), '\t');
  const std::string status = heartbeat.size() > 3 ? heartbeat[3] : "";
  store.compareSet(failure_key, "",
                   text(how, status.empty() ? "" : text("; it last reported '", status, "'")));
}

ProcessControlPlane::Watcher::Watcher(Facts facts, c10::intrusive_ptr<c10d::Store> store,
                                      std::shared_ptr<AbortList> abort_list)
    : facts_(std::move(facts)),
      store_(std::move(store)),
      abort_list_(std::move(abort_list)),
      stalls_(facts_.deadline),
      ranks_(facts_.identities.size()),
      reported_at_(steady_clock::now()),
      polled_at_(reported_at_) {
  for (Rank& rank : ranks_) rank.seen = reported_at_;
}

void ProcessControlPlane::Watcher::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    is_poll_requested_ = false;
    ++polls_begun_;
    lock.unlock();
    try {
      const LogSilencer silencer;
      poll();
    } catch (const std::exception& error) {
      handle_store_loss(error.what());
    }
    const auto reason = failure();
    if (reason) abort_list_->abort_all(with_stall_note(*reason));
    const bool stops = may_stop();
    lock.lock();
    polls_ = polls_begun_;
    if (stops) has_ended_ = true;
    polled_.notify_all();
    if (stops) return;
    pause(lock);
  }
}

void ProcessControlPlane::Watcher::pause(std::unique_lock<std::mutex>& lock) {
  const milliseconds time = is_leaving_ ? final_poll_interval : poll_interval;
  stalls_.sleep_begins(steady_clock::now(), time);
  wake_.wait_for(lock, time, [&] { return is_poll_requested_; });
  stalls_.sleep_ends(steady_clock::now());
}

std::string ProcessControlPlane::Watcher::with_stall_note(std::string reason) const {
  const std::lock_guard lock(mutex_);
  const auto stall = stalls_.recent_stall(steady_clock::now());
  if (stall == milliseconds::zero()) return reason;
  const ProcessIdentity& identity = facts_.identities[static_cast<std::size_t>(facts_.rank)];
  const std::string who =
      text("rank ", facts_.rank, " (", describe_process(identity), ") did not run for ");
  if (reason.starts_with(who)) return reason;
  return text(who, seconds_text(stall),
              ": the process or its machine was stopped. Its error after that: ", reason);
}

void ProcessControlPlane::Watcher::poll() {
  const Time begin = steady_clock::now();
  if (store_host_has_ended()) return;
  const auto [heartbeat, is_goodbye] = own_heartbeat();
  store_->set(heartbeat_key(static_cast<std::size_t>(facts_.rank)), heartbeat);
  publish_failure();
  std::vector<std::string> keys = {failure_key, end_key};
  for (std::size_t r = 0; r < ranks_.size(); ++r) keys.push_back(heartbeat_key(r));
  const auto values = store_->multiGet(keys);
  {
    const std::lock_guard lock(mutex_);
    has_said_goodbye_ = is_goodbye;
    polled_at_ = steady_clock::now();
    // A store in this process always answers, so a long poll means a stall; another store may be
    // slow.
    if (facts_.hosts_store) stalls_.operation_ended(begin, polled_at_, milliseconds::zero());
  }
  if (const std::string reason = as_string(values[0]); !reason.empty())
    set_failure(reason, Published::Yes);
  if (const std::string end = as_string(values[1]); !end.empty()) note_end(end);
  for (std::size_t r = 0; r < ranks_.size(); ++r) read_heartbeat(r, as_string(values[r + 2]));
  check_local_processes();
  publish_failure();
}

// The first failure in the store is the world's.
void ProcessControlPlane::Watcher::publish_failure() {
  std::string reason;
  {
    const std::lock_guard lock(mutex_);
    if (!failure_ || is_published_) return;
    reason = *failure_;
  }
  const std::string first = store_->compareSet(failure_key, "", reason);
  const std::lock_guard lock(mutex_);
  failure_ = first;
  is_published_ = true;
}

std::pair<std::string, bool> ProcessControlPlane::Watcher::own_heartbeat() {
  const std::lock_guard lock(mutex_);
  return {text(++heartbeats_, "\t", is_leaving_ ? "d" : "r", "\t", since(reported_at_).count(),
               "\t", status_),
          is_leaving_};
}

// Checked before libtorch talks to the store, which would log long stack traces.
bool ProcessControlPlane::Watcher::store_host_has_ended() {
  const auto self = static_cast<std::size_t>(facts_.rank);
  if (facts_.store_of_launcher || facts_.hosts_store ||
      facts_.identities[0].machine != facts_.identities[self].machine ||
      !has_ended(facts_.identities[0]))
    return false;
  {
    const std::lock_guard lock(mutex_);
    ranks_[0].has_ended = true;
  }
  handle_store_loss("");
  return true;
}

// Another machine's launcher starts its ranks no more: this machine's must not wait for them.
void ProcessControlPlane::Watcher::note_end(const std::string& reason) {
  if (std::exchange(has_noted_end_, true)) return;
  launch::note_end(reason);
}

void ProcessControlPlane::Watcher::read_heartbeat(std::size_t rank, const std::string& heartbeat) {
  const std::lock_guard lock(mutex_);
  Rank& known = ranks_[rank];
  if (heartbeat == known.heartbeat) return;
  known.heartbeat = heartbeat;
  known.seen = steady_clock::now();
  const auto parts = split(heartbeat, '\t');
  if (parts.size() < 4) return;
  known.has_left = is_goodbye_heartbeat(parts);
  known.status_age = milliseconds(std::stoll(parts[2]));
  known.status = parts[3];
}

void ProcessControlPlane::Watcher::check_local_processes() {
  const std::string& machine = facts_.identities[static_cast<std::size_t>(facts_.rank)].machine;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    const ProcessIdentity& identity = facts_.identities[r];
    if (static_cast<int>(r) == facts_.rank || identity.machine != machine || !has_ended(identity))
      continue;
    read_heartbeat(r, as_string(store_->get(heartbeat_key(r))));  // it may just have left
    bool has_left = false;
    {
      const std::lock_guard lock(mutex_);
      ranks_[r].has_ended = true;
      has_left = ranks_[r].has_left;
    }
    if (!has_left)
      set_failure(with_stall_note(text(describe_end(static_cast<int>(r), identity), "; it ",
                                       status_of(static_cast<int>(r)))),
                  Published::No);
  }
}

void ProcessControlPlane::Watcher::handle_store_loss(const std::string& error) {
  const bool is_silent =
      error.find("timed out") != std::string::npos || error.find("timeout") != std::string::npos;
  const std::string what = is_silent ? text("has not answered for ", seconds_text(facts_.deadline))
                                     : std::string("is gone");
  std::string reason = text("the launcher's store, which connects the ranks, ", what);
  if (!facts_.store_of_launcher)
    reason = text("rank 0 (", describe_process(facts_.identities[0]),
                  "), which hosts the ranks' store, ", what, "; it ", state_of(0));
  bool is_fine = false;
  {
    const std::lock_guard lock(mutex_);
    is_store_lost_ = true;
    is_fine = is_leaving_ || (!facts_.store_of_launcher && ranks_[0].has_left);
  }
  if (!is_fine) set_failure(with_stall_note(reason), Published::Yes);
}

bool ProcessControlPlane::Watcher::may_stop() {
  const std::lock_guard lock(mutex_);
  if (is_store_lost_) return true;
  if (!has_said_goodbye_) return false;
  if (!facts_.hosts_store) return true;
  bool all = true;
  for (std::size_t r = 0; r < ranks_.size(); ++r)
    all = all && (static_cast<int>(r) == facts_.rank || ranks_[r].has_left || ranks_[r].has_ended);
  return all || since(left_) > (failure_ ? time_to_read_failure : facts_.deadline);
}

void ProcessControlPlane::Watcher::set_failure(const std::string& reason, Published published) {
  const std::lock_guard lock(mutex_);
  const bool is_published = published == Published::Yes;
  if (failure_ && (is_published_ || !is_published)) return;
  failure_ = reason;
  is_published_ = is_published;
}

void ProcessControlPlane::Watcher::fail(const std::string& reason) {
  set_failure(reason, Published::No);
  poll_now(milliseconds(300));
  abort_list_->abort_all(with_stall_note(*failure()));
}

std::optional<std::string> ProcessControlPlane::Watcher::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void ProcessControlPlane::Watcher::report_status(std::string status) {
  for (char& letter : status)
    if (letter == '\t') letter = ' ';
  const std::lock_guard lock(mutex_);
  status_ = std::move(status);
  reported_at_ = steady_clock::now();
}

void ProcessControlPlane::Watcher::poll_now(milliseconds most) {
  std::unique_lock lock(mutex_);
  const std::uint64_t next = polls_begun_ + 1;
  is_poll_requested_ = true;
  wake_.notify_all();
  polled_.wait_for(lock, most, [&] { return polls_ >= next || has_ended_; });
}

// While the store does not answer, only its host is known to be silent.
std::string ProcessControlPlane::Watcher::silence(int rank, Time now) const {
  const Rank& known = ranks_[static_cast<std::size_t>(rank)];
  if (known.has_left) return ", and has left";
  if (known.has_ended) return ", and has ended";
  if (const auto stall = stalls_.recent_stall(now); stall > milliseconds::zero())
    return text(", as far as rank ", facts_.rank, " knows, which itself did not run for ",
                seconds_text(stall));
  const bool is_holder = rank == 0 && !facts_.store_of_launcher;
  const auto silent =
      std::chrono::duration_cast<milliseconds>((is_holder ? now : polled_at_) - known.seen);
  if (silent < shortest_silence) return "";
  return text(", and has sent no heartbeat for ", seconds_text(silent));
}

std::string ProcessControlPlane::Watcher::silent_ranks(const std::vector<int>& but,
                                                       IfNoneIsSilent then) const {
  std::string all;
  {
    const std::lock_guard lock(mutex_);
    if (stalls_.recent_stall(steady_clock::now()) > milliseconds::zero()) return all;
  }
  std::vector<int> silent;
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    const bool is_named = std::find(but.begin(), but.end(), rank) != but.end();
    bool is_silent = false;
    {
      const std::lock_guard lock(mutex_);
      is_silent = rank != facts_.rank && !silence(rank, steady_clock::now()).empty();
    }
    if (is_silent) silent.push_back(rank);
    if (is_silent && !is_named) all += text("; rank ", rank, " ", status_of(rank));
  }
  return silent.empty() && then == IfNoneIsSilent::SayNothing ? all : all + advice(silent);
}

// Whether a machine, the network or a process failed, if there are several machines.
std::string ProcessControlPlane::Watcher::advice(const std::vector<int>& silent) const {
  const auto is_silent = [&](int rank) {
    return std::find(silent.begin(), silent.end(), rank) != silent.end();
  };
  // While the store does not answer, the other ranks of its machine cannot be heard either.
  const bool is_store_silent = !facts_.store_of_launcher && is_silent(0);
  std::vector<std::string> machines, hosts;  // those that send nothing
  bool are_here = true;
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    are_here = are_here && is_here(rank);
    const ProcessIdentity& identity = facts_.identities[static_cast<std::size_t>(rank)];
    bool sends = false;
    for (int other = 0; other < static_cast<int>(ranks_.size()); ++other)
      sends |= facts_.identities[static_cast<std::size_t>(other)].machine == identity.machine &&
               !is_silent(other);
    if (is_store_silent && identity.machine == facts_.identities[0].machine) sends = is_here(0);
    if (sends || std::find(machines.begin(), machines.end(), identity.machine) != machines.end())
      continue;
    machines.push_back(identity.machine);
    hosts.push_back(describe_host(identity));
  }
  if (are_here) return "";
  if (!hosts.empty())
    return text(
        "\n  Nothing comes from ", join(hosts, ", "),
        ", heartbeats included: the machine or the process has stopped, or the network to it "
        "is cut. Resume the run when it is back; --max-restarts of the launcher does that by "
        "itself.");
  if (!silent.empty())
    return text(
        "\n  No heartbeat comes from ", launch::describe_ranks(silent),
        ", but other ranks of the same machine send theirs: the process was stopped, or waits "
        "for its system.");
  // Heartbeats come through the store.
  const std::lock_guard lock(mutex_);
  const auto since = std::chrono::duration_cast<milliseconds>(steady_clock::now() - polled_at_);
  if (facts_.store_of_launcher && since >= shortest_silence + poll_interval)
    return text(
        "\n  The launcher's store has not answered for ", seconds_text(since),
        ", so no heartbeat can come: its machine has stopped, or the network to it is cut. Resume "
        "the run when it is back.");
  return "\n  Heartbeats come from all ranks, so the machines and the network work: a rank is slow "
         "or waits for something else.";
}

bool ProcessControlPlane::Watcher::is_here(int rank) const {
  return facts_.identities[static_cast<std::size_t>(rank)].machine ==
         facts_.identities[static_cast<std::size_t>(facts_.rank)].machine;
}

std::string ProcessControlPlane::Watcher::status_of(int rank) const {
  const ProcessIdentity& identity = facts_.identities.at(static_cast<std::size_t>(rank));
  return text(state_of(rank), is_here(rank) ? "" : text(" (", describe_process(identity), ")"));
}

std::string ProcessControlPlane::Watcher::state_of(int rank) const {
  const std::lock_guard lock(mutex_);
  const auto now = steady_clock::now();
  const bool is_self = rank == facts_.rank;
  const Rank& known = ranks_.at(static_cast<std::size_t>(rank));
  const std::string& status = is_self ? status_ : known.status;
  const auto ago = std::chrono::duration_cast<milliseconds>(
      is_self ? now - reported_at_ : now - known.seen + known.status_age);
  return text(describe_status(status, ago), is_self ? "" : silence(rank, now));
}

std::optional<std::string> ProcessControlPlane::Watcher::describe_left_rank(
    const std::vector<int>& ranks) const {
  const std::lock_guard lock(mutex_);
  for (const int rank : ranks) {
    const Rank& known = ranks_.at(static_cast<std::size_t>(rank));
    if (known.has_left)
      return text("rank ", rank, " has left",
                  known.status.empty() ? "" : text(", having last reported '", known.status, "'"));
  }
  return {};
}

std::optional<int> ProcessControlPlane::Watcher::first_silent_rank(
    const std::vector<int>& ranks) const {
  const std::lock_guard lock(mutex_);
  if (stalls_.recent_stall(steady_clock::now()) > milliseconds::zero()) return {};
  for (const int rank : ranks)
    if (since(ranks_.at(static_cast<std::size_t>(rank)).seen) >
        2 * poll_interval + milliseconds(100))
      return rank;
  return {};
}

void ProcessControlPlane::Watcher::goodbye() {
  const std::lock_guard lock(mutex_);
  is_leaving_ = is_poll_requested_ = true;
  left_ = steady_clock::now();
  wake_.notify_all();
}

bool ProcessControlPlane::Watcher::is_failure_settled() const {
  const std::lock_guard lock(mutex_);
  return failure_ && (is_published_ || is_store_lost_ || !has_ended_);
}

bool ProcessControlPlane::Watcher::wait_for_end(milliseconds most) {
  std::unique_lock lock(mutex_);
  return polled_.wait_for(lock, most, [&] { return has_ended_; });
}

}  // namespace trestle::comm
