#pragma once

#include <chrono>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "trestle/comm/control.h"

namespace trestle::comm {

class ThreadHub;

// What the ranks of a world of threads share: the first failure, what each did last, and the hubs of
// their groups.
class ThreadBoard {
 public:
  explicit ThreadBoard(int ranks);

  int size() const { return static_cast<int>(ranks_.size()); }

  void fail(const std::string& reason);
  std::optional<std::string> failure() const;
  void say_status(int rank, std::string status);
  std::string status_of(int rank) const;
  // The rank's function has returned: whoever waits for it, now or later, fails at once.
  void leave(int rank);

  // The hub of the world's `number`-th group; who asks first makes it. Throws UsageError where ranks
  // ask for groups of other ranks under one number.
  std::shared_ptr<ThreadHub> hub(int number, const std::vector<int>& ranks);

 private:
  struct Rank {
    std::string status;
    std::chrono::steady_clock::time_point said = std::chrono::steady_clock::now();
    bool has_left = false;
  };

  std::string words_of(const Rank& rank) const;  // the caller holds the lock

  mutable std::mutex mutex_;
  std::vector<Rank> ranks_;
  std::optional<std::string> failure_;
  std::map<int, std::shared_ptr<ThreadHub>> hubs_;
};

// One rank's view of it.
class ThreadControl : public Control {
 public:
  ThreadControl(std::shared_ptr<ThreadBoard> board, int rank)
      : board_(std::move(board)), rank_(rank) {}

  void fail(const std::string& reason) override { board_->fail(reason); }
  std::optional<std::string> failure() const override { return board_->failure(); }
  void say_status(std::string status) override { board_->say_status(rank_, std::move(status)); }
  std::string status_of(int rank) const override { return board_->status_of(rank); }
  std::string explain(const Broken& broken) override;

 private:
  const std::shared_ptr<ThreadBoard> board_;
  const int rank_;
};

// "said last 'backward of stage 1', 0.2 s ago".
std::string last_words(const std::string& status, std::chrono::milliseconds ago);

}  // namespace trestle::comm
