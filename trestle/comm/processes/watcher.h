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

#include "trestle/comm/processes/process_control_plane.h"
#include "trestle/comm/processes/stall_detector.h"

namespace trestle::comm {

// How silent_ranks() ends if every rank sends heartbeats.
enum class IfNoneIsSilent { SayNothing, SayThatAllAreHeard };

// The thread of a ProcessControlPlane, and what it knows of all ranks. The thread may be detached
// in a call to the store that never returns, so it owns everything that it uses.
class ProcessControlPlane::Watcher {
 public:
  Watcher(Facts facts, c10::intrusive_ptr<c10d::Store> store,
          std::shared_ptr<AbortList> abort_list);

  void run();  // returns when goodbye() has been called and published

  // Sets the reason if there is none yet, and waits up to 0.3 s until it is published in the store.
  void fail(const std::string& reason);
  std::optional<std::string> failure() const;
  void report_status(std::string status);
  std::string status_of(int rank) const;
  // Makes the thread poll at once, and waits for that, at most `most`.
  void poll_now(std::chrono::milliseconds most);
  std::string silent_ranks(const std::vector<int>& but, IfNoneIsSilent then) const;
  // "rank 2 has left, having last reported 'forward 3'", for the first of these ranks that has
  // left.
  std::optional<std::string> describe_left_rank(const std::vector<int>& ranks) const;
  std::optional<int> first_silent_rank(const std::vector<int>& ranks) const;
  // The reason, preceded by how long this process was stopped, if that was just now.
  std::string with_stall_note(std::string reason) const;
  const Facts& facts() const { return facts_; }
  // Whether there is a failure whose reason is in the store, or which no store takes any more.
  bool is_failure_settled() const;

  void goodbye();
  bool wait_for_end(std::chrono::milliseconds most);

 private:
  using Time = std::chrono::steady_clock::time_point;
  struct Rank {
    std::string heartbeat, status;
    std::chrono::milliseconds status_age{};  // the beat, how long
    Time seen = {};                          // the beat changed
    bool has_left = false, has_ended = false;
  };

  void poll();
  void publish_failure();
  void read_heartbeat(std::size_t rank, const std::string& heartbeat);
  void note_end(const std::string& reason);
  void check_local_processes();
  void handle_store_loss(const std::string& error);
  bool may_stop();
  enum class Published { Yes, No };  // in the store
  void set_failure(const std::string& reason, Published published);
  std::pair<std::string, bool> own_heartbeat();  // also returns whether it is a goodbye
  bool store_host_has_ended();
  void pause(std::unique_lock<std::mutex>& lock);
  std::string silence(int rank, Time now) const;
  std::string state_of(int rank) const;  // its status and silence, without its process
  bool is_here(int rank) const;
  std::string advice(const std::vector<int>& silent) const;

  const Facts facts_;
  const c10::intrusive_ptr<c10d::Store> store_;
  const std::shared_ptr<AbortList> abort_list_;

  mutable std::mutex mutex_;
  std::condition_variable wake_, polled_;
  StallDetector stalls_;
  std::vector<Rank> ranks_;
  std::string status_;
  Time reported_at_, polled_at_, left_ = {};
  std::uint64_t heartbeats_ = 0, polls_begun_ = 0, polls_ = 0;
  std::optional<std::string> failure_;
  bool is_published_ = false, is_poll_requested_ = false, is_leaving_ = false,
       has_said_goodbye_ = false;
  bool is_store_lost_ = false, has_ended_ = false;
  bool has_noted_end_ = false;  // only the thread uses it
};

}  // namespace trestle::comm
