#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

namespace trestle::schedule {

// In which order the ranks of a table are walked, each as far as it gets: a list of work in place of
// a search through all ranks, so that a walk costs about the same for every action. The order is
// that of rounds over all ranks: one that wakes another with a higher number is followed by it in
// the same round. All ranks are ready at first.
//
//   WalkOrder order(2, 1);  // rank 0 needs what rank 1 makes
//   order.next();           // 0
//   order.wait(0, 0);
//   order.next();           // 1
//   order.wake(0);
//   order.next();           // 0
class WalkOrder {
 public:
  // Things that ranks may wait for are numbered from 0 to `things` - 1.
  WalkOrder(std::size_t ranks, std::size_t things) : first_waiting_(things, -1) {
    next_waiting_.assign(ranks, -1);
    for (std::size_t rank = 0; rank < ranks; ++rank) ready_.emplace(0, static_cast<int>(rank));
  }

  // The next rank that is ready; nothing if none is.
  std::optional<int> next() {
    if (ready_.empty()) return std::nullopt;
    now_ = ready_.top();
    ready_.pop();
    return now_.second;
  }

  // A rank waits for one thing at a time.
  void wait(std::size_t thing, int rank) {
    next_waiting_[static_cast<std::size_t>(rank)] = first_waiting_[thing];
    first_waiting_[thing] = rank;
  }

  // Makes all that wait for a thing ready.
  void wake(std::size_t thing) {
    for (int rank = std::exchange(first_waiting_[thing], -1); rank >= 0;) {
      add(rank);
      rank = std::exchange(next_waiting_[static_cast<std::size_t>(rank)], -1);
    }
  }

  // Makes a rank ready that waits for nothing.
  void add(int rank) { ready_.emplace(rank > now_.second ? now_.first : now_.first + 1, rank); }

 private:
  using Turn = std::pair<std::int64_t, int>;  // round, rank

  std::priority_queue<Turn, std::vector<Turn>, std::greater<>> ready_;
  Turn now_ = {0, -1};
  std::vector<std::int32_t> first_waiting_;  // for each thing a rank, or -1
  std::vector<std::int32_t> next_waiting_;  // for each rank the next that waits for the same, or -1
};

}  // namespace trestle::schedule
