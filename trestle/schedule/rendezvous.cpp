#include "trestle/schedule/rendezvous.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <string>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/schedule/grid.h"
#include "trestle/schedule/routes.h"
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
    std::size_t rank = 0;  // where the other half of a transfer is
    Action action;         // and what it is
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
      // Threads are a matter of each side; all else must agree.
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
    // Follow who waits for whom until a rank comes again: from there on it is a circle.
    std::vector<std::size_t> path;
    std::size_t rank = first;
    while (!done(rank) && std::find(path.begin(), path.end(), rank) == path.end()) {
      path.push_back(rank);
      const auto other = partner(now(rank));
      if (!other) break;
      rank = other->rank;
    }
    std::string circle;
    for (auto at = std::find(path.begin(), path.end(), rank); at != path.end(); ++at) {
      const auto other = partner(now(*at));
      circle += text("  rank ", *at, " is at ", to_string(now(*at)));
      if (other)
        circle += text(" and waits for ", to_string(other->action), " on rank ", other->rank);
      circle += "\n";
    }
    throw UsageError(
        text("schedule '", schedule_.name,
             "' deadlocks: with sends that wait for their receive, ranks ",
             "wait for each other for ever\n", circle,
             format_grid(schedule_, GridCell{static_cast<int>(rank), next_[rank]})),
        {.hint = "Put sends and receives into one order that all ranks share, as lower() does."});
  }

  const Schedule& schedule_;
  RouteTable table_;
  WalkOrder
      order_;  // a rank stops at a transfer whose other half is not up, which then takes it along
  std::vector<std::size_t> next_;  // for each rank the index of its next action
};

}  // namespace

void check_rendezvous(const Schedule& schedule) { RendezvousWalk(schedule).run(); }

}  // namespace trestle::schedule
