#include "trestle/simulate/simulate.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/schedule/routes.h"
#include "trestle/schedule/walk_order.h"
#include "trestle/simulate/action_times.h"
#include "trestle/simulate/memory.h"
#include "trestle/simulate/over_hosts.h"
#include "trestle/simulate/step_timeline.h"
#include "trestle/simulate/tensor_messages.h"
#include "trestle/simulate/tie_messages.h"

namespace trestle::simulate {
namespace {

using schedule::Action;
using schedule::Event;
using schedule::Kind;
using schedule::Schedule;
using schedule::Timeline;
using schedule::Transfer;
using Way = Transfer::Way;

void check_network(const Network& network, const Costs& costs) {
  check_time(network.link.latency, "the link's latency");
  if (!(network.link.bandwidth >= 0) || !std::isfinite(network.link.bandwidth))
    throw UsageError(text("the link's bandwidth is ", network.link.bandwidth, " bytes per second"));
  if (!(network.link.both_ways > 0) || network.link.both_ways > 1)
    throw UsageError(text("the link's share of both ways is ", network.link.both_ways));
  const bool known =
      !network.hosts.empty() &&
      std::all_of(network.hosts.begin(), network.hosts.end(), [&](const auto& row) {
        return row.size() == costs.stages.size() && *std::min_element(row.begin(), row.end()) >= 0;
      });
  if (!known)
    throw UsageError(
        text("Network::hosts does not name a host for each of ", costs.stages.size(), " stages"),
        {.hint = "Give one row for each replica, with a number from 0 per stage."});
  if (costs.concurrency == Concurrency::OneThread)
    for (const auto& row : network.hosts)
      if (std::adjacent_find(row.begin(), row.end(), std::not_equal_to<>()) != row.end())
        throw UsageError("one thread runs all stages, but they are on several hosts",
                         {.hint = "Use Concurrency::EachRank."});
  if (!network.stages.empty() && network.stages.size() != costs.stages.size())
    throw UsageError(text("data-parallel traffic is given for ", network.stages.size(),
                          " stages, costs for ", costs.stages.size()));
}

void check_ties(const Costs& costs) {
  const int stages = static_cast<int>(costs.stages.size());
  for (const TieCost& tie : costs.ties) {
    check_time(tie.seconds, "a tied parameter's message");
    if (std::min(tie.owner, tie.copy) < 0 || std::max(tie.owner, tie.copy) >= stages ||
        tie.owner == tie.copy || tie.bytes < 0)
      throw UsageError(text("a tied parameter of ", tie.bytes, " bytes, owned by stage ", tie.owner,
                            " and copied by stage ", tie.copy, " of ", stages),
                       {.hint = "Give two different stages, counted from 0, and the bytes."});
  }
}

void check_messages(const Costs& costs) {
  if (!costs.messages.empty() && costs.messages.size() != costs.stages.size())
    throw UsageError(text("messages of tensor ranks are given for ", costs.messages.size(),
                          " stages, costs for ", costs.stages.size()));
  for (const StageMessages& stage : costs.messages)
    for (const auto* list : {&stage.forward, &stage.backward})
      for (const LayerMessage& message : *list) {
        check_time(message.seconds, "a message of tensor ranks");
        check_time(message.beside, "the computation beside a message of tensor ranks");
      }
}

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
  check_ties(costs);
  check_messages(costs);
  if (costs.network) check_network(*costs.network, costs);
}

class Simulator {
 public:
  Simulator(const Schedule& schedule, const Costs& costs)
      : schedule_(schedule),
        costs_(costs),
        routes_(schedule),
        order_(schedule.ranks.size(), transfers() + 1 + costs.ties.size()),
        arrived_(transfers(), not_yet),
        times_(schedule, costs),
        ties_(schedule, costs),
        norms_to_come_(times_.norms()) {
    for (const auto& route : schedule_.routes) inside_.push_back(within_rank(schedule_, route));
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
      if (next_[rank] < schedule_.ranks[rank].size()) throw_stuck(schedule_, rank, next_[rank]);
    }
    return timeline();
  }

 private:
  static constexpr double not_yet = -1;

  std::size_t micro_batches() const { return static_cast<std::size_t>(schedule_.micro_batches); }
  std::size_t transfers() const { return 2 * schedule_.routes.size() * micro_batches(); }
  std::size_t place(int route, int micro_batch, Way way) const {
    return 2 * (static_cast<std::size_t>(route) * micro_batches() +
                static_cast<std::size_t>(micro_batch)) +
           (way == Way::Gradient ? 1 : 0);
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

  // The items that ranks wait for: the transfers, the last norm, the ties' gradients.
  bool await_ties(std::size_t rank, std::size_t next, double* time) {
    const auto missing = ties_.await(rank, next, time);
    if (missing) order_.wait(transfers() + 1 + *missing, static_cast<int>(rank));
    return !missing;
  }

  void note_norm(const Action& action, double end) {
    if (action.kind != Kind::Norm) return;
    norms_end_ = std::max(norms_end_, end);
    if (--norms_to_come_ == 0) order_.wake(transfers());
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
          !await_norms(action, static_cast<int>(rank), &begin) || !await_ties(rank, next, &begin))
        return;
      const double end = begin + times_.of(action);
      events_[rank].push_back({static_cast<int>(rank), action, begin, end});
      free = end;
      if (is_send(action.kind)) send(action, begin);
      note_norm(action, end);
      hand_over_inside(action, end);
      for (const std::size_t tie : ties_.sent_by(rank, next, end))
        order_.wake(transfers() + 1 + tie);
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
    std::vector<std::vector<Event>> receives;
    for (std::size_t rank = 0; rank < events_.size(); ++rank)
      receives.push_back(receive_events(rank));
    Timeline timeline = timeline_of(schedule_, std::move(events_), std::move(receives));
    fill_memory(&timeline, costs_);
    return timeline;
  }

  const Schedule& schedule_;
  const Costs& costs_;
  schedule::RouteTable routes_;
  schedule::WalkOrder order_;
  std::vector<double> arrived_;  // for each transfer its time of arrival
  ActionTimes times_;
  TieMessages ties_;
  int norms_to_come_ = 0;                      // NORMs that have not run
  double norms_end_ = 0;                       // of those that have run
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
  Timeline timeline =
      costs.network ? simulate_over_hosts(schedule, costs) : Simulator(schedule, costs).run();
  place_tensor_messages(&timeline, costs);
  return timeline;
}

Costs unit_costs(int stages) {
  Costs costs;
  costs.stages.resize(static_cast<std::size_t>(std::max(stages, 0)));
  return costs;
}

}  // namespace trestle::simulate
