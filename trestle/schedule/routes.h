#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "trestle/schedule/schedule.h"

// Relates actions to routes: the direction of a transfer, and what a stage waits for.
namespace trestle::schedule {

// One micro-batch's tensors on one route in one direction. A SEND and its RECV have the same
// Transfer.
struct Transfer {
  int route = 0;  // index into Schedule::routes
  int micro_batch = 0;
  enum class Way { Activation, Gradient } way = Way::Activation;

  friend auto operator<=>(const Transfer&, const Transfer&) = default;
};

// The main lane's routes between all neighbours, in the order of stages.
std::vector<Route> main_lane(int stages);

// Finds routes by stage and by action in constant time. It is built for the routes of a schedule, a
// timeline or a pipeline's cut, and copies what it needs.
//
//   const std::vector<Route> routes = main_lane(4);
//   const RouteTable table(4, routes);
//   const auto transfer = table.of(parse_action("1SEND_F0"));  // route 1: from stage 1 to 2
class RouteTable {
 public:
  RouteTable(int stages, const std::vector<Route>& routes);
  explicit RouteTable(const Schedule& schedule) : RouteTable(schedule.stages, schedule.routes) {}

  // The route of `action`, a SEND or RECV of any kind. Nothing if there is no such route, or if it
  // does not begin or end at the action's stage. Actions of skips carry their route's index. The
  // route of a main-lane action is the one that leaves its stage for the next, or enters it from
  // the previous.
  std::optional<Transfer> of(const Action& action) const;

  // The indices of the routes that end and begin at a stage, in ascending order. The stage must
  // exist.
  const std::vector<int>& into(int stage) const {
    return into_.at(static_cast<std::size_t>(stage));
  }
  const std::vector<int>& out_of(int stage) const {
    return out_of_.at(static_cast<std::size_t>(stage));
  }

 private:
  struct Ends {
    int from_stage = 0;
    int to_stage = 0;
    bool skip = false;
  };

  std::vector<Ends> ends_;  // [route]
  std::vector<std::vector<int>> into_;
  std::vector<std::vector<int>> out_of_;
  std::vector<int> main_into_;  // [stage]: the main lane's route, or -1
  std::vector<int> main_out_of_;
};

// The SEND that starts a transfer, and the RECV that ends it.
Action send_of(const std::vector<Route>& routes, const Transfer& transfer);
Action receive_of(const std::vector<Route>& routes, const Transfer& transfer);

// True if both ends are on one rank. There is then no SEND and no RECV, and the consumer uses the
// producer's tensors. False if a stage is on no rank.
bool within_rank(const std::vector<int>& rank_of_stage, const Route& route);
inline bool within_rank(const Schedule& schedule, const Route& route) {
  return within_rank(schedule.rank_of_stage, route);
}

// The forward that an action computes (F, or the first half of an overlapped pair), and the
// backward (B, I, or the second half). Other actions wait for these.
struct Cell {
  int stage = 0;
  int micro_batch = 0;
};
inline std::optional<Cell> forward_in(const Action& action) {
  if (action.kind == Kind::Forward || action.kind == Kind::OverlapForwardBackward)
    return Cell{action.stage, action.micro_batch};
  return std::nullopt;
}
inline std::optional<Cell> backward_in(const Action& action) {
  if (action.kind == Kind::Backward || action.kind == Kind::InputGrad)
    return Cell{action.stage, action.micro_batch};
  if (action.kind == Kind::OverlapForwardBackward)
    return Cell{action.partner_stage, action.partner_micro_batch};
  return std::nullopt;
}

}  // namespace trestle::schedule
