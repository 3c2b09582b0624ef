#pragma once

#include <chrono>

namespace trestle::comm {

// Detects that this process, or its machine, was stopped for a while: a sleep or a call then took
// much longer than requested. The caller locks.
class StallDetector {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // A delay counts as a stall if it is a second or more, and half of the deadline or more: a busy
  // machine delays a process less.
  explicit StallDetector(std::chrono::milliseconds deadline);

  void sleep_begins(Time now, std::chrono::milliseconds duration);
  void sleep_ends(Time now);
  // For an operation that began at `begin` and should have taken `expected`.
  void operation_ended(Time begin, Time now, std::chrono::milliseconds expected);

  // How long this process was stopped just now; 0 if it was not. Failures that it detects within 5
  // s after a stall are likely its own.
  std::chrono::milliseconds recent_stall(Time now) const;

 private:
  const std::chrono::milliseconds shortest_;
  bool is_sleeping_ = false;
  Time sleep_began_ = {}, wakes_at_ = {}, resumed_at_ = {};
  std::chrono::milliseconds stalled_for_{};
};

}  // namespace trestle::comm
