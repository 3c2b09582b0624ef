#include "trestle/schedule/routes.h"

#include <cstddef>

namespace trestle::schedule {
namespace {

using Way = Transfer::Way;

// A SEND or a RECV.
struct Half {
  bool skip = false;
  bool at_start = false;  // at the producer's end: it sends activations and receives gradients
  Way way = Way::Activation;
};

std::optional<Half> half_of(Kind kind) {
  switch (kind) {
    case Kind::SendActivation:
      return Half{.skip = false, .at_start = true, .way = Way::Activation};
    case Kind::RecvActivation:
      return Half{.skip = false, .at_start = false, .way = Way::Activation};
    case Kind::SendGradient:
      return Half{.skip = false, .at_start = false, .way = Way::Gradient};
    case Kind::RecvGradient:
      return Half{.skip = false, .at_start = true, .way = Way::Gradient};
    case Kind::SendSkip:
      return Half{.skip = true, .at_start = true, .way = Way::Activation};
    case Kind::RecvSkip:
      return Half{.skip = true, .at_start = false, .way = Way::Activation};
    case Kind::SendSkipGradient:
      return Half{.skip = true, .at_start = false, .way = Way::Gradient};
    case Kind::RecvSkipGradient:
      return Half{.skip = true, .at_start = true, .way = Way::Gradient};
    default:
      return std::nullopt;
  }
}

Action make(Kind kind, int stage, const Transfer& transfer, const Route& route) {
  return {.kind = kind,
          .stage = static_cast<std::int16_t>(stage),
          .micro_batch = transfer.micro_batch,
          .route = static_cast<std::int16_t>(route.skip ? transfer.route : -1)};
}

bool has(const std::vector<int>& of_stage, int stage) {
  return stage >= 0 && static_cast<std::size_t>(stage) < of_stage.size();
}

}  // namespace

std::vector<Route> main_lane(int stages) {
  std::vector<Route> routes;
  for (int stage = 0; stage + 1 < stages; ++stage) {
    routes.push_back({.from_stage = stage, .to_stage = stage + 1, .skip = false, .name = "main"});
  }
  return routes;
}

RouteTable::RouteTable(int stages, const std::vector<Route>& routes)
    : into_(static_cast<std::size_t>(stages)),
      out_of_(static_cast<std::size_t>(stages)),
      main_into_(static_cast<std::size_t>(stages), -1),
      main_out_of_(static_cast<std::size_t>(stages), -1) {
  for (std::size_t at = 0; at < routes.size(); ++at) {
    const Route& route = routes[at];
    const int index = static_cast<int>(at);
    ends_.push_back({route.from_stage, route.to_stage, route.skip});
    into_.at(static_cast<std::size_t>(route.to_stage)).push_back(index);
    out_of_.at(static_cast<std::size_t>(route.from_stage)).push_back(index);
    if (route.skip) continue;
    int& in = main_into_[static_cast<std::size_t>(route.to_stage)];
    int& out = main_out_of_[static_cast<std::size_t>(route.from_stage)];
    if (in < 0) in = index;
    if (out < 0) out = index;
  }
}

std::optional<Transfer> RouteTable::of(const Action& action) const {
  const auto half = half_of(action.kind);
  if (!half) return std::nullopt;
  int route = action.route;
  if (half->skip) {
    if (route < 0 || static_cast<std::size_t>(route) >= ends_.size()) return std::nullopt;
    const Ends& ends = ends_[static_cast<std::size_t>(route)];
    const int stage = half->at_start ? ends.from_stage : ends.to_stage;
    if (!ends.skip || stage != action.stage) return std::nullopt;
  } else {
    const auto& main = half->at_start ? main_out_of_ : main_into_;
    route = has(main, action.stage) ? main[static_cast<std::size_t>(action.stage)] : -1;
    if (route < 0) return std::nullopt;
  }
  return Transfer{.route = route, .micro_batch = action.micro_batch, .way = half->way};
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

bool within_rank(const std::vector<int>& rank_of_stage, const Route& route) {
  const auto rank_of = [&](int stage) {
    return has(rank_of_stage, stage) ? rank_of_stage[static_cast<std::size_t>(stage)] : -1;
  };
  const int rank = rank_of(route.from_stage);
  return rank >= 0 && rank == rank_of(route.to_stage);
}

}  // namespace trestle::schedule
