#include "trestle/simulate/simulate.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/schedule/grid.h"
#include "trestle/schedule/routes.h"
#include "trestle/simulate/memory.h"

namespace trestle::simulate {
namespace {

using schedule::Action;
using schedule::Event;
using schedule::Kind;
using schedule::Route;
using schedule::Schedule;
using schedule::Timeline;
using schedule::Transfer;
using Key = std::pair<int, int>;  // stage, micro-batch
using Way = Transfer::Way;

void check(const Schedule& schedule, const Costs& costs) {
  if (!schedule.lowered()) {
    throw UsageError(text("schedule '", schedule.name, "' has no communication yet"),
                     {.hint = "Pass it through lower() first."});
  }
  if (costs.stages.size() != static_cast<std::size_t>(schedule.stages)) {
    throw UsageError(text("costs are given for ", costs.stages.size(), " stages, schedule '",
                          schedule.name, "' has ", schedule.stages));
  }
  if (!costs.routes.empty() && costs.routes.size() != schedule.routes.size()) {
    throw UsageError(text("costs are given for ", costs.routes.size(), " routes, schedule '",
                          schedule.name, "' has ", schedule.routes.size()),
                     {.hint = "Give one for each route, or none for free transfers."});
  }
}

class Simulator {
 public:
  Simulator(const Schedule& schedule, const Costs& costs)
      : schedule_(schedule), costs_(costs), routes_(schedule) {
    for (const auto& actions : schedule_.ranks) {
      for (const Action& action : actions) {
        if (action.kind == Kind::Recompute) recomputed_.insert({action.stage, action.micro_batch});
      }
    }
  }

  Timeline run() {
    const std::size_t ranks = schedule_.ranks.size();
    next_.assign(ranks, 0);
    free_.assign(ranks, 0);
    // Every time follows from earlier ones, so ranks can be walked in any order, each as far as it
    // gets.
    for (bool progress = true; progress;) {
      progress = false;
      for (std::size_t rank = 0; rank < ranks; ++rank) {
        while (next_[rank] < schedule_.ranks[rank].size() && advance(rank)) progress = true;
      }
    }
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (next_[rank] < schedule_.ranks[rank].size()) stuck(rank);
    }
    add_receives();
    return timeline();
  }

 private:
  [[noreturn]] void stuck(std::size_t rank) const {
    const Action& action = schedule_.ranks[rank][next_[rank]];
    throw UsageError(
        text("schedule '", schedule_.name, "' gets stuck: rank ", rank, " waits for ever before ",
             to_string(action), "\n",
             format_grid(schedule_, schedule::GridCell{static_cast<int>(rank), next_[rank]})),
        {.hint = "Its input is never made, or never sent; validate() says more."});
  }

  // When what travels on these routes is there; nothing while some of it is not.
  std::optional<double> arrival(const std::vector<int>& routes, int micro_batch, Way way) const {
    double time = 0;
    for (const int index : routes) {
      const Route& route = schedule_.routes[static_cast<std::size_t>(index)];
      double here = 0;
      if (within_rank(schedule_, route)) {
        const auto& done = way == Way::Activation ? forwards_ : backwards_;
        const auto made =
            done.find({way == Way::Activation ? route.from_stage : route.to_stage, micro_batch});
        if (made == done.end()) return std::nullopt;
        here = made->second;
      } else {
        const auto arrived = arrived_.find({index, micro_batch, way});
        if (arrived == arrived_.end()) return std::nullopt;
        here = arrived->second;
      }
      time = std::max(time, here);
    }
    return time;
  }

  std::optional<double> ready(const Action& action) const {
    double time = 0;
    if (const auto cell = forward_in(action)) {
      const auto inputs = arrival(routes_.into(cell->stage), cell->micro_batch, Way::Activation);
      if (!inputs) return std::nullopt;
      time = *inputs;
    }
    if (const auto cell = backward_in(action)) {
      const auto gradients = arrival(routes_.out_of(cell->stage), cell->micro_batch, Way::Gradient);
      if (!gradients) return std::nullopt;
      time = std::max(time, *gradients);
    }
    return time;
  }

  double duration(const Action& action) const {
    const StageCost& cost = costs_.stages.at(static_cast<std::size_t>(action.stage));
    switch (action.kind) {
      case Kind::Forward:
        return recomputed_.contains({action.stage, action.micro_batch}) ? cost.forward_no_graph
                                                                        : cost.forward;
      case Kind::Backward:
        return cost.backward;
      case Kind::InputGrad:
        return cost.input_grad;
      case Kind::WeightGrad:
        return cost.weight_grad;
      case Kind::Recompute:
        return cost.recompute;
      case Kind::OverlapForwardBackward:  // on paper the two run one after the other
        return cost.forward +
               costs_.stages.at(static_cast<std::size_t>(action.partner_stage)).backward;
      case Kind::Step:
        return cost.step;
      default:
        return 0;
    }
  }

  bool advance(std::size_t rank) {
    const Action& action = schedule_.ranks[rank][next_[rank]];
    const int rank_number = static_cast<int>(rank);
    if (is_receive(action.kind)) {  // it only opens the door; its event is written once the arrival
                                    // is known
      receives_.emplace_back(rank_number, action);
      ++next_[rank];
      return true;
    }
    const auto inputs = ready(action);
    if (!inputs) return false;
    const double begin = std::max(free_[rank], *inputs);
    const double end = begin + duration(action);
    if (is_send(action.kind)) send(action, begin);
    events_.push_back({rank_number, action, begin, end});
    free_[rank] = end;
    if (const auto cell = forward_in(action)) forwards_[{cell->stage, cell->micro_batch}] = end;
    if (const auto cell = backward_in(action)) backwards_[{cell->stage, cell->micro_batch}] = end;
    ++next_[rank];
    return true;
  }

  void send(const Action& action, double time) {
    const auto transfer = routes_.of(action);
    if (!transfer) {
      throw UsageError(
          text("schedule '", schedule_.name, "' has no route for ", to_string(action)));
    }
    const auto route = static_cast<std::size_t>(transfer->route);
    arrived_[*transfer] = time + (costs_.routes.empty() ? 0 : costs_.routes[route].seconds);
  }

  void add_receives() {
    for (const auto& [rank, action] : receives_) {
      const auto transfer = routes_.of(action);
      const auto found = transfer ? arrived_.find(*transfer) : arrived_.end();
      if (found == arrived_.end()) {
        throw UsageError(
            text("schedule '", schedule_.name, "': nothing is ever sent to ", to_string(action)));
      }
      events_.push_back({rank, action, found->second, found->second});
    }
  }

  Timeline timeline() {
    Timeline timeline;
    timeline.title = text("simulated ", schedule_.name);
    timeline.stages = schedule_.stages;
    timeline.micro_batches = schedule_.micro_batches;
    timeline.rank_count = schedule_.rank_count();
    timeline.rank_of_stage = schedule_.rank_of_stage;
    timeline.routes = schedule_.routes;
    std::stable_sort(events_.begin(), events_.end(), [](const Event& a, const Event& b) {
      return a.rank != b.rank ? a.rank < b.rank : a.begin < b.begin;
    });
    timeline.events = std::move(events_);
    fill_memory(&timeline, costs_);
    return timeline;
  }

  const Schedule& schedule_;
  const Costs& costs_;
  schedule::RouteTable routes_;
  std::set<Key> recomputed_;
  std::vector<std::size_t> next_;  // for each rank the index of its next action
  std::vector<double> free_;       // for each rank when it has finished what it did
  std::map<Key, double> forwards_;
  std::map<Key, double> backwards_;
  std::map<Transfer, double> arrived_;
  std::vector<std::pair<int, Action>> receives_;
  std::vector<Event> events_;
};

}  // namespace

Timeline simulate(const Schedule& schedule, const Costs& costs) {
  check(schedule, costs);
  return Simulator(schedule, costs).run();
}

Costs unit_costs(int stages) {
  Costs costs;
  costs.stages.resize(static_cast<std::size_t>(std::max(stages, 0)));
  return costs;
}

}  // namespace trestle::simulate
