#include "trestle/schedule/rendezvous.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "trestle/base/text.h"
#include "trestle/schedule/routes.h"
#include "trestle/schedule/table_error.h"
#include "trestle/schedule/walk_order.h"

namespace trestle::schedule {
namespace {

class RendezvousWalk {
 public:
  explicit RendezvousWalk(const Schedule& schedule)
      : schedule_(schedule),
        table_(schedule),
        order_(schedule.ranks.size(), 0),
        next_(schedule.ranks.size(), 0) {}

  void run() {
    while (const auto rank = order_.next()) {
      while (advance(static_cast<std::size_t>(*rank))) {
      }
    }
    for (std::size_t rank = 0; rank < next_.size(); ++rank) {
      if (!done(rank)) stuck(rank);
    }
  }

 private:
  bool done(std::size_t rank) const { return next_[rank] == schedule_.ranks[rank].size(); }
  const Action& now(std::size_t rank) const { return schedule_.ranks[rank][next_[rank]]; }

  struct Meeting {
    std::size_t rank = 0;  // the rank of the transfer's other half
    Action action;         // the transfer's other half
  };
  std::optional<Meeting> partner(const Action& action) const {
    const auto transfer = table_.of(action);
    if (!transfer) return std::nullopt;
    const Action other = is_send(action.kind) ? receive_of(schedule_.routes, *transfer)
                                              : send_of(schedule_.routes, *transfer);
    const int rank = schedule_.rank_of_stage[static_cast<std::size_t>(other.stage)];
    return Meeting{static_cast<std::size_t>(rank), other};
  }

  bool advance(std::size_t rank) {
    if (done(rank)) return false;
    if (const auto other = partner(now(rank))) {
      // Each side may have its own thread count; everything else must match.
      if (done(other->rank)) return false;
      Action there = now(other->rank);
      there.threads = 0;
      if (there != other->action) return false;
      ++next_[other->rank];
      order_.add(static_cast<int>(other->rank));
    }
    ++next_[rank];
    return true;
  }

  [[noreturn]] void stuck(std::size_t first) const {
    // Follow the waiting ranks until one repeats: the path from there on is a cycle.
    std::vector<std::size_t> path;
    std::size_t rank = first;
    while (!done(rank) && std::find(path.begin(), path.end(), rank) == path.end()) {
      path.push_back(rank);
      const auto other = partner(now(rank));
      if (!other) break;
      rank = other->rank;
    }
    std::string cycle;
    for (auto at = std::find(path.begin(), path.end(), rank); at != path.end(); ++at) {
      const auto other = partner(now(*at));
      cycle += text("\n  rank ", *at, " is at ", to_string(now(*at)));
      if (other)
        cycle += text(" and waits for ", to_string(other->action), " on rank ", other->rank);
    }
    throw TableError(
        schedule_,
        {.rule = "the table deadlocks: with sends that block until they are received, these ranks "
                 "wait for each other" +
                 cycle,
         .hint = "Put sends and receives into one order that all ranks share, or leave them "
                 "out: trestle then adds them.",
         .cell = GridCell{static_cast<int>(rank), next_[rank]}});
  }

  const Schedule& schedule_;
  RouteTable table_;
  // A rank stops at a transfer until the other rank reaches its half, which then advances both.
  WalkOrder order_;
  std::vector<std::size_t> next_;  // for each rank the index of its next action
};

}  // namespace

void check_rendezvous(const Schedule& schedule) { RendezvousWalk(schedule).run(); }

}  // namespace trestle::schedule
