#pragma once

#include <optional>
#include <vector>

#include "trestle/schedule/schedule.h"

// What actions and routes say about each other: which way a transfer goes, and what a stage waits
// for.
namespace trestle::schedule {

// One micro-batch's tensors on one route, one way: what a SEND and its RECV have in common.
struct Transfer {
  int route = 0;  // index into Schedule::routes
  int micro_batch = 0;
  enum class Way { Activation, Gradient } way = Way::Activation;

  friend auto operator<=>(const Transfer&, const Transfer&) = default;
};

// The route that `action` (a SEND or RECV of any kind) travels on, or nothing if there is no such
// route, or the route does not begin or end at the action's stage. Main-lane actions carry no
// index: their route is the pair of neighbours.
std::optional<Transfer> transfer_of(const std::vector<Route>& routes, const Action& action);

// The SEND that starts a transfer, and the RECV that ends it.
Action send_of(const std::vector<Route>& routes, const Transfer& transfer);
Action receive_of(const std::vector<Route>& routes, const Transfer& transfer);

// True if both ends are on one rank: then there is no SEND and no RECV, and the consumer reads what
// is there.
bool within_rank(const Schedule& schedule, const Route& route);

// The forward that an action computes (F, or the first half of an overlapped pair), and the
// backward (B, I, or the second half): the actions that others wait for.
struct Cell {
  int stage = 0;
  int micro_batch = 0;
};
std::optional<Cell> forward_in(const Action& action);
std::optional<Cell> backward_in(const Action& action);

// routes_into[s] and routes_out_of[s]: indices of the routes that end and begin at stage s.
struct RouteTable {
  std::vector<std::vector<int>> into;
  std::vector<std::vector<int>> out_of;
};
RouteTable route_table(const Schedule& schedule);

}  // namespace trestle::schedule
