#include "trestle/comm/watcher.h"

#include <algorithm>
#include <exception>

#include "trestle/base/text.h"
#include "trestle/comm/completion.h"
#include "trestle/comm/quiet_log.h"

namespace trestle::comm {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr milliseconds between_looks{250}, between_looks_at_the_end{20};
constexpr milliseconds silence_that_counts{1000};
// What a process that was stopped finds when it goes on is found within this time.
constexpr milliseconds time_to_find_out{5000};
constexpr milliseconds for_bad_news{1000};  // how long the store stays for others to read a failure
constexpr const char* failure_key = "failure";

milliseconds since(steady_clock::time_point time) {
  return std::chrono::duration_cast<milliseconds>(steady_clock::now() - time);
}

std::string beat_key(std::size_t rank) { return text("beat/", rank); }

bool says_goodbye(const std::vector<std::string>& beat) {
  return beat.size() > 1 && beat[1] == "d";
}

std::string as_string(const std::vector<std::uint8_t>& bytes) {
  return {bytes.begin(), bytes.end()};
}

}  // namespace

void ProcessControl::prepare(c10d::Store& store, int rank) {
  store.set(beat_key(static_cast<std::size_t>(rank)), "0\tr\t0\t");
  store.compareSet(failure_key, "", "");
}

bool ProcessControl::has_left(c10d::Store& store, int rank) {
  const std::string key = beat_key(static_cast<std::size_t>(rank));
  return store.check({key}) && says_goodbye(split(as_string(store.get(key)), '\t'));
}

ProcessControl::Watcher::Watcher(Facts facts, c10::intrusive_ptr<c10d::Store> store,
                                 std::shared_ptr<BreakList> breaks)
    : facts_(std::move(facts)),
      store_(std::move(store)),
      breaks_(std::move(breaks)),
      ranks_(facts_.cards.size()),
      said_(steady_clock::now()),
      looked_at_(said_) {
  for (Rank& rank : ranks_) rank.seen = said_;
}

void ProcessControl::Watcher::run() {
  std::unique_lock lock(mutex_);
  for (;;) {
    is_asked_ = false;
    ++looks_begun_;
    lock.unlock();
    try {
      const QuietLog quiet;
      look();
    } catch (const std::exception& error) {
      store_is_gone(error.what());
    }
    const auto reason = failure();
    if (reason) breaks_->break_all(own_words(*reason));
    const bool goes = may_go();
    lock.lock();
    looks_ = looks_begun_;
    if (goes) has_ended_ = true;
    looked_.notify_all();
    if (goes) return;
    pause(lock);
  }
}

void ProcessControl::Watcher::pause(std::unique_lock<std::mutex>& lock) {
  const milliseconds time = leaves_ ? between_looks_at_the_end : between_looks;
  const Time begin = steady_clock::now();
  sleeps_ = true;
  wakes_at_ = begin + time;
  wake_.wait_for(lock, time, [&] { return is_asked_; });
  sleeps_ = false;
  note_absence(begin, time);
}

void ProcessControl::Watcher::note_absence(Time since_then, milliseconds expected) {
  const milliseconds away = since(since_then) - expected;
  if (away < absence_that_counts()) return;
  was_away_ = away;
  back_at_ = steady_clock::now();
}

// Who sleeps so much longer than it asked for was stopped; a machine that is merely busy is not.
milliseconds ProcessControl::Watcher::absence_that_counts() const {
  return std::max(milliseconds(1000), facts_.deadline / 2);
}

// Of a process that has just come to itself the watcher may be the last to wake.
milliseconds ProcessControl::Watcher::absence(Time now) const {
  if (sleeps_ && now - wakes_at_ >= absence_that_counts())
    return std::chrono::duration_cast<milliseconds>(now - wakes_at_);
  return was_away_ > milliseconds::zero() && now - back_at_ < time_to_find_out
             ? was_away_
             : milliseconds::zero();
}

std::string ProcessControl::Watcher::own_words(std::string reason) const {
  const std::lock_guard lock(mutex_);
  const auto away = absence(steady_clock::now());
  if (away == milliseconds::zero()) return reason;
  const ProcessCard& card = facts_.cards[static_cast<std::size_t>(facts_.rank)];
  const std::string who =
      text("rank ", facts_.rank, " (process ", card.pid, " on ", card.host, ") did not run for ");
  if (reason.starts_with(who)) return reason;
  return text(who, seconds_text(away),
              ": it was stopped, or its machine was. What it found then: ", reason);
}

void ProcessControl::Watcher::look() {
  const Time begin = steady_clock::now();
  if (holder_is_gone()) return;
  const auto [beat, is_goodbye] = own_beat();
  store_->set(beat_key(static_cast<std::size_t>(facts_.rank)), beat);
  tell_failure();
  std::vector<std::string> keys = {failure_key};
  for (std::size_t r = 0; r < ranks_.size(); ++r) keys.push_back(beat_key(r));
  const auto values = store_->multiGet(keys);
  {
    const std::lock_guard lock(mutex_);
    has_said_goodbye_ = is_goodbye;
    looked_at_ = steady_clock::now();
    // A store of one's own always answers; another one may be what stood still.
    if (facts_.holds_store) note_absence(begin, milliseconds::zero());
  }
  if (const std::string reason = as_string(values[0]); !reason.empty()) set_failure(reason, true);
  for (std::size_t r = 0; r < ranks_.size(); ++r) read(r, as_string(values[r + 1]));
  look_at_processes();
  tell_failure();
}

// The first one in the store counts for all.
void ProcessControl::Watcher::tell_failure() {
  std::string reason;
  {
    const std::lock_guard lock(mutex_);
    if (!failure_ || is_told_) return;
    reason = *failure_;
  }
  const std::string first = store_->compareSet(failure_key, "", reason);
  const std::lock_guard lock(mutex_);
  failure_ = first;
  is_told_ = true;
}

std::pair<std::string, bool> ProcessControl::Watcher::own_beat() {
  const std::lock_guard lock(mutex_);
  return {text(++beats_, "\t", leaves_ ? "d" : "r", "\t", since(said_).count(), "\t", status_),
          leaves_};
}

// To be seen before libtorch tries to speak with it, and complains at length.
bool ProcessControl::Watcher::holder_is_gone() {
  const auto self = static_cast<std::size_t>(facts_.rank);
  if (facts_.store_of_launcher || facts_.holds_store ||
      facts_.cards[0].machine != facts_.cards[self].machine || !has_ended(facts_.cards[0]))
    return false;
  {
    const std::lock_guard lock(mutex_);
    ranks_[0].has_ended = true;
  }
  store_is_gone("");
  return true;
}

void ProcessControl::Watcher::read(std::size_t rank, const std::string& beat) {
  const std::lock_guard lock(mutex_);
  Rank& known = ranks_[rank];
  if (beat == known.beat) return;
  known.beat = beat;
  known.seen = steady_clock::now();
  const auto parts = split(beat, '\t');
  if (parts.size() < 4) return;
  known.has_left = says_goodbye(parts);
  known.said_before = milliseconds(std::stoll(parts[2]));
  known.status = parts[3];
}

void ProcessControl::Watcher::look_at_processes() {
  const std::string& machine = facts_.cards[static_cast<std::size_t>(facts_.rank)].machine;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    const ProcessCard& card = facts_.cards[r];
    if (static_cast<int>(r) == facts_.rank || card.machine != machine || !has_ended(card)) continue;
    read(r, as_string(store_->get(beat_key(r))));  // it may just have said goodbye
    bool has_left = false;
    {
      const std::lock_guard lock(mutex_);
      ranks_[r].has_ended = true;
      has_left = ranks_[r].has_left;
    }
    if (!has_left)
      set_failure(own_words(text("rank ", r, " (process ", card.pid, " on ", card.host,
                                 ") ended without a word; it ", status_of(static_cast<int>(r)))),
                  false);
  }
}

void ProcessControl::Watcher::store_is_gone(const std::string& error) {
  const bool is_silent =
      error.find("timed out") != std::string::npos || error.find("timeout") != std::string::npos;
  const std::string what = is_silent ? text("has not answered for ", seconds_text(facts_.deadline))
                                     : std::string("is gone");
  std::string reason = text("the launcher's store, by which the ranks know of each other, ", what);
  if (!facts_.store_of_launcher)
    reason = text("rank 0 (process ", facts_.cards[0].pid, " on ", facts_.cards[0].host,
                  "), which holds the ranks' store, ", what, "; it ", status_of(0));
  bool is_fine = false;
  {
    const std::lock_guard lock(mutex_);
    is_store_gone_ = true;
    is_fine = leaves_ || (!facts_.store_of_launcher && ranks_[0].has_left);
  }
  if (!is_fine) set_failure(own_words(reason), true);
}

bool ProcessControl::Watcher::may_go() {
  const std::lock_guard lock(mutex_);
  if (is_store_gone_) return true;
  if (!has_said_goodbye_) return false;
  if (!facts_.holds_store) return true;
  bool all = true;
  for (std::size_t r = 0; r < ranks_.size(); ++r)
    all = all && (static_cast<int>(r) == facts_.rank || ranks_[r].has_left || ranks_[r].has_ended);
  return all || since(left_) > (failure_ ? for_bad_news : facts_.deadline);
}

void ProcessControl::Watcher::set_failure(const std::string& reason, bool is_told) {
  const std::lock_guard lock(mutex_);
  if (failure_ && (is_told_ || !is_told)) return;
  failure_ = reason;
  is_told_ = is_told;
}

void ProcessControl::Watcher::fail(const std::string& reason) {
  set_failure(reason, false);
  look_now(milliseconds(300));
  breaks_->break_all(own_words(*failure()));
}

std::optional<std::string> ProcessControl::Watcher::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void ProcessControl::Watcher::say(std::string status) {
  for (char& letter : status)
    if (letter == '\t') letter = ' ';
  const std::lock_guard lock(mutex_);
  status_ = std::move(status);
  said_ = steady_clock::now();
}

void ProcessControl::Watcher::look_now(milliseconds most) {
  std::unique_lock lock(mutex_);
  const std::uint64_t next = looks_begun_ + 1;
  is_asked_ = true;
  wake_.notify_all();
  looked_.wait_for(lock, most, [&] { return looks_ >= next || has_ended_; });
}

// While the store does not answer, only who holds it is known to be silent.
std::string ProcessControl::Watcher::silence(int rank, Time now) const {
  const Rank& known = ranks_[static_cast<std::size_t>(rank)];
  if (known.has_left) return ", and has left";
  if (known.has_ended) return ", and has ended";
  if (const auto away = absence(now); away > milliseconds::zero())
    return text(", as far as rank ", facts_.rank, " knows, which did not run for ",
                seconds_text(away));
  const bool is_holder = rank == 0 && !facts_.store_of_launcher;
  const auto silent =
      std::chrono::duration_cast<milliseconds>((is_holder ? now : looked_at_) - known.seen);
  if (silent < silence_that_counts) return "";
  return text(", and gives no sign of life for ", seconds_text(silent));
}

std::string ProcessControl::Watcher::silent_ranks(const std::vector<int>& but) const {
  std::string all;
  {
    const std::lock_guard lock(mutex_);
    if (absence(steady_clock::now()) > milliseconds::zero()) return all;
  }
  for (int rank = 0; rank < static_cast<int>(ranks_.size()); ++rank) {
    if (std::find(but.begin(), but.end(), rank) != but.end()) continue;
    bool is_silent = false;
    {
      const std::lock_guard lock(mutex_);
      is_silent = rank != facts_.rank && !silence(rank, steady_clock::now()).empty();
    }
    if (is_silent) all += text("; rank ", rank, " ", status_of(rank));
  }
  return all;
}

std::string ProcessControl::Watcher::status_of(int rank) const {
  const std::lock_guard lock(mutex_);
  const auto now = steady_clock::now();
  const bool is_self = rank == facts_.rank;
  const Rank& known = ranks_.at(static_cast<std::size_t>(rank));
  const std::string& status = is_self ? status_ : known.status;
  const auto ago = std::chrono::duration_cast<milliseconds>(
      is_self ? now - said_ : now - known.seen + known.said_before);
  const std::string said = status.empty()
                               ? text("has said nothing for ", seconds_text(ago))
                               : text("said last '", status, "', ", seconds_text(ago), " ago");
  return said + (is_self ? "" : silence(rank, now));
}

std::optional<std::string> ProcessControl::Watcher::who_left(const std::vector<int>& ranks) const {
  const std::lock_guard lock(mutex_);
  for (const int rank : ranks) {
    const Rank& known = ranks_.at(static_cast<std::size_t>(rank));
    if (known.has_left)
      return text("rank ", rank, " has left",
                  known.status.empty() ? "" : text(", having said last '", known.status, "'"));
  }
  return {};
}

std::optional<int> ProcessControl::Watcher::who_is_silent(const std::vector<int>& ranks) const {
  const std::lock_guard lock(mutex_);
  if (absence(steady_clock::now()) > milliseconds::zero()) return {};
  for (const int rank : ranks)
    if (since(ranks_.at(static_cast<std::size_t>(rank)).seen) >
        2 * between_looks + milliseconds(100))
      return rank;
  return {};
}

void ProcessControl::Watcher::goodbye() {
  const std::lock_guard lock(mutex_);
  leaves_ = is_asked_ = true;
  left_ = steady_clock::now();
  wake_.notify_all();
}

bool ProcessControl::Watcher::wait_for_end(milliseconds most) {
  std::unique_lock lock(mutex_);
  return looked_.wait_for(lock, most, [&] { return has_ended_; });
}

}  // namespace trestle::comm
