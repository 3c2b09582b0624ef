#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "trestle/comm/control_plane.h"

namespace trestle::comm {

class ThreadHub;

// The state that the ranks of a world of threads share: the first failure, each rank's last status,
// and the hubs of their groups.
class ThreadBoard {
 public:
  explicit ThreadBoard(int ranks);

  int size() const { return static_cast<int>(ranks_.size()); }

  void fail(const std::string& reason);
  std::optional<std::string> failure() const;
  void report_status(int rank, std::string status);
  std::string status_of(int rank) const;
  // The rank's function has returned: every present or later wait for it fails at once.
  void leave(int rank);

  // The hub of the world's `number`-th group; the first call creates it. Throws UsageError if ranks
  // request different ranks under one number.
  std::shared_ptr<ThreadHub> hub(int number, const std::vector<int>& ranks);

 private:
  struct Rank {
    std::string status;
    std::chrono::steady_clock::time_point said = std::chrono::steady_clock::now();
    bool has_left = false;
  };

  std::string describe(const Rank& rank) const;  // the caller holds the lock

  mutable std::mutex mutex_;
  std::vector<Rank> ranks_;
  std::optional<std::string> failure_;
  std::map<int, std::shared_ptr<ThreadHub>> hubs_;
};

// One rank's view of the board.
class ThreadControlPlane : public ControlPlane {
 public:
  ThreadControlPlane(std::shared_ptr<ThreadBoard> board, int rank)
      : board_(std::move(board)), rank_(rank) {}

  void fail(const std::string& reason) override { board_->fail(reason); }
  std::optional<std::string> failure() const override { return board_->failure(); }
  void report_status(std::string status) override {
    board_->report_status(rank_, std::move(status));
  }
  std::string status_of(int rank) const override { return board_->status_of(rank); }
  std::string explain(const Broken& broken) override;

 private:
  const std::shared_ptr<ThreadBoard> board_;
  const int rank_;
};

}  // namespace trestle::comm
