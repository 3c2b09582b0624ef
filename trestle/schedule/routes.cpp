#include "trestle/schedule/routes.h"

#include <cstddef>

namespace trestle::schedule {
namespace {

using Way = Transfer::Way;

Way way_of(Kind kind) {
  switch (kind) {
    case Kind::SendGradient:
    case Kind::RecvGradient:
    case Kind::SendSkipGradient:
    case Kind::RecvSkipGradient:
      return Way::Gradient;
    default:
      return Way::Activation;
  }
}

bool is_skip(Kind kind) {
  return kind == Kind::SendSkip || kind == Kind::RecvSkip || kind == Kind::SendSkipGradient ||
         kind == Kind::RecvSkipGradient;
}

Action make(Kind kind, int stage, const Transfer& transfer, const Route& route) {
  return {.kind = kind,
          .stage = static_cast<std::int16_t>(stage),
          .micro_batch = transfer.micro_batch,
          .route = static_cast<std::int16_t>(route.skip ? transfer.route : -1)};
}

}  // namespace

std::optional<Transfer> transfer_of(const std::vector<Route>& routes, const Action& action) {
  if (!is_send(action.kind) && !is_receive(action.kind)) return std::nullopt;
  const Way way = way_of(action.kind);
  // The producer's end of the route acts when an activation leaves or a gradient comes back.
  const bool at_start = is_send(action.kind) == (way == Way::Activation);
  const auto fits = [&](const Route& route) {
    return route.skip == is_skip(action.kind) &&
           (at_start ? route.from_stage : route.to_stage) == action.stage;
  };
  if (is_skip(action.kind)) {
    const auto index = static_cast<std::size_t>(action.route);
    if (action.route < 0 || index >= routes.size() || !fits(routes[index])) {
      return std::nullopt;
    }
    return Transfer{action.route, action.micro_batch, way};
  }
  for (std::size_t index = 0; index < routes.size(); ++index) {
    if (fits(routes[index])) {
      return Transfer{static_cast<int>(index), action.micro_batch, way};
    }
  }
  return std::nullopt;
}

Action send_of(const std::vector<Route>& routes, const Transfer& transfer) {
  const Route& route = routes.at(static_cast<std::size_t>(transfer.route));
  if (transfer.way == Way::Activation) {
    return make(route.skip ? Kind::SendSkip : Kind::SendActivation, route.from_stage, transfer,
                route);
  }
  return make(route.skip ? Kind::SendSkipGradient : Kind::SendGradient, route.to_stage, transfer,
              route);
}

Action receive_of(const std::vector<Route>& routes, const Transfer& transfer) {
  const Route& route = routes.at(static_cast<std::size_t>(transfer.route));
  if (transfer.way == Way::Activation) {
    return make(route.skip ? Kind::RecvSkip : Kind::RecvActivation, route.to_stage, transfer,
                route);
  }
  return make(route.skip ? Kind::RecvSkipGradient : Kind::RecvGradient, route.from_stage, transfer,
              route);
}

bool within_rank(const Schedule& schedule, const Route& route) {
  return schedule.rank_of_stage.at(static_cast<std::size_t>(route.from_stage)) ==
         schedule.rank_of_stage.at(static_cast<std::size_t>(route.to_stage));
}

std::optional<Cell> forward_in(const Action& action) {
  if (action.kind == Kind::Forward || action.kind == Kind::OverlapForwardBackward) {
    return Cell{action.stage, action.micro_batch};
  }
  return std::nullopt;
}

std::optional<Cell> backward_in(const Action& action) {
  if (action.kind == Kind::Backward || action.kind == Kind::InputGrad) {
    return Cell{action.stage, action.micro_batch};
  }
  if (action.kind == Kind::OverlapForwardBackward) {
    return Cell{action.partner_stage, action.partner_micro_batch};
  }
  return std::nullopt;
}

RouteTable route_table(const Schedule& schedule) {
  RouteTable table;
  const auto stages = static_cast<std::size_t>(schedule.stages);
  table.into.resize(stages);
  table.out_of.resize(stages);
  for (std::size_t index = 0; index < schedule.routes.size(); ++index) {
    const Route& route = schedule.routes[index];
    table.into.at(static_cast<std::size_t>(route.to_stage)).push_back(static_cast<int>(index));
    table.out_of.at(static_cast<std::size_t>(route.from_stage)).push_back(static_cast<int>(index));
  }
  return table;
}

}  // namespace trestle::schedule
