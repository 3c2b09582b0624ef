#include "trestle/simulate/simulate.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/simulate/on_shared_cores.h"
#include "trestle/simulate/over_hosts.h"
#include "trestle/simulate/step_flow.h"
#include "trestle/simulate/tensor_messages.h"

namespace trestle::simulate {
namespace {

using schedule::Action;
using schedule::Schedule;
using schedule::Timeline;

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

void check_shared_cores(const SharedCores& shared, const Costs& costs) {
  const auto good = [](double number, double most) { return number >= 1 && number <= most; };
  if (!good(shared.cores, most_cores) || !good(shared.ranks_at_once, most_cores) ||
      !good(shared.slowdown, std::max(shared.cores, 1.0)))
    throw UsageError(
        text("shared cores: ", shared.cores, " cores, ", shared.ranks_at_once,
             " ranks at once, and actions ", shared.slowdown, " times as long on busy cores"),
        {.hint = "Give numbers from 1. Busy cores are not slower than one core alone."});
  if (costs.network)
    throw UsageError("shared cores are given for ranks on several hosts",
                     {.hint = "Leave one of them out: hosts have cores of their own."});
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
  if (costs.shared_cores) check_shared_cores(*costs.shared_cores, costs);
}

// Every time follows from earlier ones, so the order of ranks matters only if one thread runs all
// of them; next_rank() is then its order. One thread shares the cores only with those of other
// replicas.
Timeline simulate_on_own_cores(const Schedule& schedule, const Costs& costs) {
  StepFlow flow(schedule, costs);
  std::vector<double> free(schedule.ranks.size(), 0);  // for each rank the end of its last action
  double thread_free = 0;                              // the same for Concurrency::OneThread
  const double longer = costs.shared_cores ? 1 / costs.shared_cores->speed(1) : 1;
  while (const auto next = flow.next_rank()) {
    const auto rank = static_cast<std::size_t>(*next);
    double& end = costs.concurrency == Concurrency::OneThread ? thread_free : free[rank];
    while (const Action* action = flow.next_action(rank)) {
      double begin = end;
      if (!flow.await(*action, rank, &begin)) break;
      end = begin + longer * flow.seconds_of(*action);
      flow.perform(*action, rank, begin, end);
    }
  }
  return flow.timeline();
}

}  // namespace

void check_time(double seconds, const std::string& of) {
  if (seconds >= 0 && seconds <= longest_time) return;
  throw UsageError(text("the cost of ", of, ", ", seconds, " s, is not a valid time"),
                   {.hint = text("Give a number from 0 to ", longest_time, ".")});
}

Timeline simulate(const Schedule& schedule, const Costs& costs) {
  check(schedule, costs);
  const bool share = costs.shared_cores && costs.concurrency == Concurrency::EachRank;
  Timeline timeline = costs.network ? simulate_over_hosts(schedule, costs)
                      : share       ? simulate_on_shared_cores(schedule, costs)
                                    : simulate_on_own_cores(schedule, costs);
  place_tensor_messages(&timeline, costs);
  return timeline;
}

Costs unit_costs(int stages) {
  Costs costs;
  costs.stages.resize(static_cast<std::size_t>(std::max(stages, 0)));
  return costs;
}

}  // namespace trestle::simulate
