#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "trestle/comm/process_control.h"

namespace trestle::comm {

// What ProcessControl's thread does, and what it has seen. It may be left behind in a call to the
// store that never returns, so it holds nothing of others'.
class ProcessControl::Watcher {
 public:
  Watcher(Facts facts, c10::intrusive_ptr<c10d::Store> store, std::shared_ptr<BreakList> breaks);

  void run();  // until goodbye() is said and done

  // Sets the reason if there is none yet, and has it told to the others, waiting a moment for that.
  void fail(const std::string& reason);
  std::optional<std::string> failure() const;
  void say(std::string status);
  std::string status_of(int rank) const;
  // Has the watcher look at once, and waits for it, at most so long.
  void look_now(std::chrono::milliseconds most);
  std::string silent_ranks(const std::vector<int>& but) const;
  // "rank 2 has left, having said last 'forward 3'", where one of these has.
  std::optional<std::string> who_left(const std::vector<int>& ranks) const;
  std::optional<int> who_is_silent(const std::vector<int>& ranks) const;
  // The reason, and before it how long this process did not run, if that was so just now.
  std::string own_words(std::string reason) const;
  const Facts& facts() const { return facts_; }

  void goodbye();
  bool wait_for_end(std::chrono::milliseconds most);

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Rank {
    std::string beat, status;
    std::chrono::milliseconds said_before{};  // the beat, how long
    Time seen = {};                           // the beat changed
    bool has_left = false, has_ended = false;
  };

  void look();
  void tell_failure();
  void read(std::size_t rank, const std::string& beat);
  void look_at_processes();
  void store_is_gone(const std::string& error);
  bool may_go();
  void set_failure(const std::string& reason, bool is_told);
  std::pair<std::string, bool> own_beat();  // and whether it is a goodbye
  bool holder_is_gone();
  void pause(std::unique_lock<std::mutex>& lock);
  void note_absence(Time since, std::chrono::milliseconds expected);
  std::chrono::milliseconds absence_that_counts() const;
  std::chrono::milliseconds absence(Time now) const;  // the caller holds the lock
  std::string silence(int rank, Time now) const;

  const Facts facts_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const std::shared_ptr<BreakList> breaks_;

  mutable std::mutex mutex_;
  std::condition_variable wake_, looked_;
  std::vector<Rank> ranks_;
  std::string status_;
  Time said_, looked_at_, left_ = {};
  // Until when the watcher sleeps; how long the process stood still, and until when.
  Time wakes_at_ = {}, back_at_ = {};
  std::chrono::milliseconds was_away_{};
  std::uint64_t beats_ = 0, looks_begun_ = 0, looks_ = 0;
  std::optional<std::string> failure_;
  bool sleeps_ = false, is_told_ = false, is_asked_ = false, leaves_ = false,
       has_said_goodbye_ = false;
  bool is_store_gone_ = false, has_ended_ = false;
};

}  // namespace trestle::comm
