#include "trestle/simulate/simulate.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <iterator>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/schedule/grid.h"
#include "trestle/schedule/routes.h"
#include "trestle/schedule/walk_order.h"
#include "trestle/simulate/memory.h"

namespace trestle::simulate {
namespace {

using schedule::Action;
using schedule::Event;
using schedule::Kind;
using schedule::Schedule;
using schedule::Timeline;
using schedule::Transfer;
using Way = Transfer::Way;

void check(const Schedule& schedule, const Costs& costs) {
  if (!schedule.lowered()) {
    throw UsageError(text("schedule '", schedule.name, "' has no communication yet"),
                     {.hint = "Pass it through lower() first."});
  }
  std::size_t all = 0;
  for (const auto& actions : schedule.ranks) all += actions.size();
  constexpr std::size_t spare = 1024;
  if (static_cast<std::size_t>(schedule.stages) * static_cast<std::size_t>(schedule.micro_batches) >
      all + spare) {
    throw UsageError(text("schedule '", schedule.name, "' has ", all, " actions for ",
                          schedule.stages, " stages x ", schedule.micro_batches,
                          " micro-batches: most of its forwards are missing"),
                     {.hint = "validate() names them."});
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
  for (std::size_t stage = 0; stage < costs.stages.size(); ++stage) {
    const StageCost& cost = costs.stages[stage];
    if (!(cost.lent_speed_up > 0) || !std::isfinite(cost.lent_speed_up))
      throw UsageError(text("stage ", stage, ": lent_speed_up is ", cost.lent_speed_up));
    for (const double time :
         {cost.forward, cost.backward, cost.input_grad, cost.weight_grad, cost.recompute,
          cost.forward_no_graph, cost.norm, cost.step, cost.unshard, cost.reduce})
      check_time(time, text("stage ", stage));
  }
  for (std::size_t route = 0; route < costs.routes.size(); ++route)
    check_time(costs.routes[route].seconds, text("route ", route));
}

class Simulator {
 public:
  Simulator(const Schedule& schedule, const Costs& costs)
      : schedule_(schedule),
        costs_(costs),
        routes_(schedule),
        order_(schedule.ranks.size(), transfers() + 1),
        arrived_(transfers(), not_yet),
        recomputed_(static_cast<std::size_t>(schedule.stages) * micro_batches(), false) {
    for (const auto& route : schedule_.routes) inside_.push_back(within_rank(schedule_, route));
    for (const auto& actions : schedule_.ranks) {
      for (const Action& action : actions) {
        check_range(action);
        if (action.kind == Kind::Recompute)
          recomputed_[cell(action.stage, action.micro_batch)] = true;
        if (action.kind == Kind::Norm) ++norms_to_come_;
      }
    }
  }

  Timeline run() {
    const std::size_t ranks = schedule_.ranks.size();
    next_.assign(ranks, 0);
    free_.assign(ranks, 0);
    events_.resize(ranks);
    receives_.resize(ranks);
    // Every time follows from earlier ones, so the order of ranks matters only if one thread runs
    // all of them; this is then its order.
    while (const auto rank = order_.next()) walk(static_cast<std::size_t>(*rank));
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      if (next_[rank] < schedule_.ranks[rank].size()) stuck(rank);
    }
    return timeline();
  }

 private:
  static constexpr double not_yet = -1;

  std::size_t micro_batches() const { return static_cast<std::size_t>(schedule_.micro_batches); }
  std::size_t transfers() const { return 2 * schedule_.routes.size() * micro_batches(); }
  std::size_t cell(int stage, int micro_batch) const {
    return static_cast<std::size_t>(stage) * micro_batches() +
           static_cast<std::size_t>(micro_batch);
  }
  std::size_t place(int route, int micro_batch, Way way) const {
    return 2 * (static_cast<std::size_t>(route) * micro_batches() +
                static_cast<std::size_t>(micro_batch)) +
           (way == Way::Gradient ? 1 : 0);
  }

  void check_range(const Action& action) const {
    const auto holds = [&](int stage, int micro_batch) {
      return stage >= 0 && stage < schedule_.stages && micro_batch < schedule_.micro_batches;
    };
    const bool numbered =
        is_compute(action.kind) || is_send(action.kind) || is_receive(action.kind);
    const bool overlap = action.kind == Kind::OverlapForwardBackward;
    if (holds(action.stage, action.micro_batch) && !(numbered && action.micro_batch < 0) &&
        (!overlap || (holds(action.partner_stage, action.partner_micro_batch) &&
                      action.partner_micro_batch >= 0)))
      return;
    throw UsageError(text("schedule '", schedule_.name, "': ", to_string(action), " is outside of ",
                          schedule_.stages, " stages and ", schedule_.micro_batches,
                          " micro-batches"));
  }

  [[noreturn]] void stuck(std::size_t rank) const {
    const Action& action = schedule_.ranks[rank][next_[rank]];
    throw UsageError(
        text("schedule '", schedule_.name, "' gets stuck: rank ", rank, " waits for ever before ",
             to_string(action), "\n",
             format_grid(schedule_, schedule::GridCell{static_cast<int>(rank), next_[rank]})),
        {.hint = "Its input is never produced or never sent; validate() gives details."});
  }

  // Raises `time` to the arrival of all values on these routes. Returns false, and lets the rank
  // wait, if a value has not arrived.
  bool await(const std::vector<int>& routes, int micro_batch, Way way, int rank, double* time) {
    for (const int route : routes) {
      const std::size_t at = place(route, micro_batch, way);
      if (arrived_[at] == not_yet) {
        order_.wait(at, rank);
        return false;
      }
      *time = std::max(*time, arrived_[at]);
    }
    return true;
  }

  bool await_inputs(const Action& action, int rank, double* time) {
    const auto forward = forward_in(action);
    if (forward &&
        !await(routes_.into(forward->stage), forward->micro_batch, Way::Activation, rank, time))
      return false;
    const auto backward = backward_in(action);
    return !backward ||
           await(routes_.out_of(backward->stage), backward->micro_batch, Way::Gradient, rank, time);
  }

  // A STEP waits for the norms of all ranks.
  bool await_norms(const Action& action, int rank, double* time) {
    if (action.kind != Kind::Step) return true;
    if (norms_to_come_ > 0) {
      order_.wait(transfers(), rank);
      return false;
    }
    *time = std::max(*time, norms_end_);
    return true;
  }

  void note_norm(const Action& action, double end) {
    if (action.kind != Kind::Norm) return;
    norms_end_ = std::max(norms_end_, end);
    if (--norms_to_come_ == 0) order_.wake(transfers());
  }

  // The sum over all stages of the stage's rank.
  double norm_duration(int stage) const {
    const int rank = schedule_.rank_of_stage[static_cast<std::size_t>(stage)];
    double all = 0;
    for (std::size_t s = 0; s < costs_.stages.size(); ++s)
      if (schedule_.rank_of_stage[s] == rank) all += costs_.stages[s].norm;
    return all;
  }

  double duration(const Action& action) const {
    const StageCost& cost = costs_.stages[static_cast<std::size_t>(action.stage)];
    const double time = own_duration(action, cost);
    return action.threads > 0 ? time / cost.lent_speed_up : time;
  }

  double own_duration(const Action& action, const StageCost& cost) const {
    switch (action.kind) {
      case Kind::Forward:
        return recomputed_[cell(action.stage, action.micro_batch)] ? cost.forward_no_graph
                                                                   : cost.forward;
      case Kind::Backward:
        return cost.backward;
      case Kind::InputGrad:
        return cost.input_grad;
      case Kind::WeightGrad:
        return cost.weight_grad;
      case Kind::Recompute:
        return cost.recompute;
      case Kind::OverlapForwardBackward:  // simulated one after the other
        return cost.forward +
               costs_.stages[static_cast<std::size_t>(action.partner_stage)].backward;
      case Kind::Norm:
        return norm_duration(action.stage);
      case Kind::Step:
        return cost.step;
      case Kind::Unshard:
        return cost.unshard;
      case Kind::ReduceGrad:
        return cost.reduce;
      default:
        return 0;
    }
  }

  void arrive(int route, int micro_batch, Way way, double time) {
    const std::size_t at = place(route, micro_batch, way);
    arrived_[at] = time;
    order_.wake(at);
  }

  // A value within a rank arrives as soon as it is produced.
  void hand_over_inside(const Action& action, double end) {
    if (const auto made = forward_in(action)) {
      for (const int route : routes_.out_of(made->stage)) {
        if (inside_[static_cast<std::size_t>(route)])
          arrive(route, made->micro_batch, Way::Activation, end);
      }
    }
    if (const auto made = backward_in(action)) {
      for (const int route : routes_.into(made->stage)) {
        if (inside_[static_cast<std::size_t>(route)])
          arrive(route, made->micro_batch, Way::Gradient, end);
      }
    }
  }

  void send(const Action& action, double time) {
    const auto transfer = routes_.of(action);
    if (!transfer) {
      throw UsageError(
          text("schedule '", schedule_.name, "' has no route for ", to_string(action)));
    }
    const auto route = static_cast<std::size_t>(transfer->route);
    arrive(transfer->route, transfer->micro_batch, transfer->way,
           time + (costs_.routes.empty() ? 0 : costs_.routes[route].seconds));
  }

  // Runs the rank's actions until one must wait.
  void walk(std::size_t rank) {
    const auto& actions = schedule_.ranks[rank];
    double& free = costs_.concurrency == Concurrency::OneThread ? thread_free_ : free_[rank];
    for (std::size_t& next = next_[rank]; next < actions.size(); ++next) {
      const Action& action = actions[next];
      if (is_receive(action.kind)) {  // its event is added once all arrivals are known
        receives_[rank].push_back(action);
        continue;
      }
      double begin = free;
      if (!await_inputs(action, static_cast<int>(rank), &begin) ||
          !await_norms(action, static_cast<int>(rank), &begin))
        return;
      const double end = begin + duration(action);
      events_[rank].push_back({static_cast<int>(rank), action, begin, end});
      free = end;
      if (is_send(action.kind)) send(action, begin);
      note_norm(action, end);
      hand_over_inside(action, end);
    }
  }

  std::vector<Event> receive_events(std::size_t rank) const {
    std::vector<Event> events;
    events.reserve(receives_[rank].size());
    for (const Action& action : receives_[rank]) {
      const auto transfer = routes_.of(action);
      const double time =
          transfer ? arrived_[place(transfer->route, transfer->micro_batch, transfer->way)]
                   : not_yet;
      if (time == not_yet) {
        throw UsageError(text("schedule '", schedule_.name, "': no message is ever sent to ",
                              to_string(action)));
      }
      events.push_back({static_cast<int>(rank), action, time, time});
    }
    return events;
  }

  Timeline timeline() {
    Timeline timeline;
    timeline.title = text("simulated ", schedule_.name);
    timeline.stages = schedule_.stages;
    timeline.micro_batches = schedule_.micro_batches;
    timeline.rank_count = schedule_.rank_count();
    timeline.rank_of_stage = schedule_.rank_of_stage;
    timeline.routes = schedule_.routes;
    std::size_t all = 0;
    for (const auto& actions : schedule_.ranks) all += actions.size();
    timeline.events.reserve(all);
    const auto earlier = [](const Event& a, const Event& b) { return a.begin < b.begin; };
    for (std::size_t rank = 0; rank < events_.size(); ++rank) {
      std::vector<Event> receives = receive_events(rank);
      std::stable_sort(receives.begin(), receives.end(), earlier);
      std::merge(events_[rank].begin(), events_[rank].end(), receives.begin(), receives.end(),
                 std::back_inserter(timeline.events), earlier);
    }
    fill_memory(&timeline, costs_);
    return timeline;
  }

  const Schedule& schedule_;
  const Costs& costs_;
  schedule::RouteTable routes_;
  schedule::WalkOrder order_;
  std::vector<double> arrived_;  // for each transfer its time of arrival
  int norms_to_come_ = 0;        // NORMs that have not run
  double norms_end_ = 0;         // of those that have run
  std::vector<bool> recomputed_;
  std::vector<bool> inside_;                   // for each route: whether it stays on one rank
  std::vector<std::size_t> next_;              // for each rank the index of its next action
  std::vector<double> free_;                   // for each rank the end of its last action
  double thread_free_ = 0;                     // the same for Concurrency::OneThread
  std::vector<std::vector<Event>> events_;     // for each rank, without its receives
  std::vector<std::vector<Action>> receives_;  // for each rank
};

}  // namespace

void check_time(double seconds, const std::string& of) {
  if (seconds >= 0 && seconds <= longest_time) return;
  throw UsageError(text("the cost of ", of, ", ", seconds, " s, is not a valid time"),
                   {.hint = text("Give a number from 0 to ", longest_time, ".")});
}

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
