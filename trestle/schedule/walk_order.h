#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <queue>
#include <utility>
#include <vector>

namespace trestle::schedule {

// The order in which to walk the ranks of a table, each as far as it gets. It is a work list
// instead of a search through all ranks, so the cost is about constant for each action. The order
// equals that of rounds over all ranks: a rank that wakes a rank with a higher number is followed
// by it in the same round. All ranks are ready at first.
//
//   WalkOrder order(2, 1);  // rank 0 waits for an item of rank 1
//   order.next();           // 0
//   order.wait(0, 0);
//   order.next();           // 1
//   order.wake(0);
//   order.next();           // 0
class WalkOrder {
 public:
  // The items that ranks wait for are numbered from 0 to `items` - 1.
  WalkOrder(std::size_t ranks, std::size_t items) : first_waiting_(items, -1) {
    next_waiting_.assign(ranks, -1);
    for (std::size_t rank = 0; rank < ranks; ++rank) ready_.emplace(0, static_cast<int>(rank));
  }

  // The next ready rank, or nothing if no rank is ready.
  std::optional<int> next() {
    if (ready_.empty()) return std::nullopt;
    now_ = ready_.top();
    ready_.pop();
    return now_.second;
  }

  // A rank waits for one item at a time.
  void wait(std::size_t item, int rank) {
    next_waiting_[static_cast<std::size_t>(rank)] = first_waiting_[item];
    first_waiting_[item] = rank;
  }

  // Makes all ranks ready that wait for an item.
  void wake(std::size_t item) {
    for (int rank = std::exchange(first_waiting_[item], -1); rank >= 0;) {
      add(rank);
      rank = std::exchange(next_waiting_[static_cast<std::size_t>(rank)], -1);
    }
  }

  // Makes a rank ready that waits for no item.
  void add(int rank) { ready_.emplace(rank > now_.second ? now_.first : now_.first + 1, rank); }

 private:
  using Turn = std::pair<std::int64_t, int>;  // round, rank

  std::priority_queue<Turn, std::vector<Turn>, std::greater<>> ready_;
  Turn now_ = {0, -1};
  std::vector<std::int32_t> first_waiting_;  // for each item a waiting rank, or -1
  std::vector<std::int32_t> next_waiting_;   // for each rank the next one in the item's list, or -1
};

}  // namespace trestle::schedule
