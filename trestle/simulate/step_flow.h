#pragma once

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/schedule/routes.h"
#include "trestle/schedule/walk_order.h"
#include "trestle/simulate/action_times.h"
#include "trestle/simulate/memory.h"
#include "trestle/simulate/step_timeline.h"
#include "trestle/simulate/tie_messages.h"

namespace trestle::simulate {

// The messages of a step: those that its actions wait for, and those that have arrived. Each
// message has a time of its own, so an arrival is known as soon as its sender's action is
// simulated, also if it lies in the future of its receiver. Keeps references to both arguments.
class StepFlow {
 public:
  StepFlow(const schedule::Schedule& schedule, const Costs& costs)
      : schedule_(schedule),
        costs_(costs),
        routes_(schedule),
        order_(schedule.ranks.size(), transfers() + 1 + costs.ties.size()),
        arrived_(transfers(), not_yet),
        times_(schedule, costs),
        ties_(schedule, costs),
        norms_to_come_(times_.norms()),
        next_(schedule.ranks.size(), 0),
        events_(schedule.ranks.size()) {
    for (const auto& route : schedule_.routes) inside_.push_back(within_rank(schedule_, route));
    for (std::size_t rank = 0; rank < events_.size(); ++rank)
      events_[rank].reserve(schedule_.ranks[rank].size());
  }

  // A rank that may continue: all of them at first, and then those whose inputs have come.
  std::optional<int> next_rank() { return order_.next(); }

  // The rank's next action, after receives, which do not block. Nothing at the end of its list.
  const schedule::Action* next_action(std::size_t rank) {
    const auto& actions = schedule_.ranks[rank];
    std::size_t& next = next_[rank];
    while (next < actions.size() && is_receive(actions[next].kind)) ++next;
    return next < actions.size() ? &actions[next] : nullptr;
  }

  // Raises `time` to the arrival of all that the rank's next action needs. Returns false if one of
  // them is not known yet: next_rank() names the rank again when it is.
  bool await(const schedule::Action& action, std::size_t rank, double* time) {
    return await_inputs(action, static_cast<int>(rank), time) &&
           await_norms(action, static_cast<int>(rank), time) && await_ties(rank, next_[rank], time);
  }

  double seconds_of(const schedule::Action& action) const { return times_.of(action); }

  // The rank's next action ran from `begin` to `end`.
  void perform(const schedule::Action& action, std::size_t rank, double begin, double end) {
    events_[rank].push_back({static_cast<int>(rank), action, begin, end});
    if (is_send(action.kind)) send(action, begin);
    note_norm(action, end);
    hand_over_inside(action, end);
    for (const std::size_t tie : ties_.sent_by(rank, next_[rank], end))
      order_.wake(transfers() + 1 + tie);
    ++next_[rank];
  }

  // Throws UsageError if a rank has not reached its end.
  schedule::Timeline timeline() {
    for (std::size_t rank = 0; rank < next_.size(); ++rank)
      if (next_[rank] < schedule_.ranks[rank].size()) throw_stuck(schedule_, rank, next_[rank]);
    schedule::Timeline timeline =
        timeline_of(schedule_, std::move(events_), [&](const schedule::Transfer& transfer) {
          const double time = arrived_[place(transfer.route, transfer.micro_batch, transfer.way)];
          return time == not_yet ? std::nullopt : std::optional(time);
        });
    fill_memory(&timeline, costs_);
    return timeline;
  }

 private:
  using Action = schedule::Action;
  using Kind = schedule::Kind;
  using Way = schedule::Transfer::Way;
  static constexpr double not_yet = -1;

  std::size_t micro_batches() const { return static_cast<std::size_t>(schedule_.micro_batches); }
  std::size_t transfers() const { return 2 * schedule_.routes.size() * micro_batches(); }
  std::size_t place(int route, int micro_batch, Way way) const {
    return 2 * (static_cast<std::size_t>(route) * micro_batches() +
                static_cast<std::size_t>(micro_batch)) +
           (way == Way::Gradient ? 1 : 0);
  }

  bool await_routes(const std::vector<int>& routes, int micro_batch, Way way, int rank,
                    double* time) {
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
    if (forward && !await_routes(routes_.into(forward->stage), forward->micro_batch,
                                 Way::Activation, rank, time))
      return false;
    const auto backward = backward_in(action);
    return !backward || await_routes(routes_.out_of(backward->stage), backward->micro_batch,
                                     Way::Gradient, rank, time);
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

  const schedule::Schedule& schedule_;
  const Costs& costs_;
  schedule::RouteTable routes_;
  schedule::WalkOrder order_;
  std::vector<double> arrived_;  // for each transfer its time of arrival
  ActionTimes times_;
  TieMessages ties_;
  int norms_to_come_ = 0;          // NORMs that have not run
  double norms_end_ = 0;           // of those that have run
  std::vector<bool> inside_;       // for each route: whether it stays on one rank
  std::vector<std::size_t> next_;  // for each rank the index of its next action
  std::vector<std::vector<schedule::Event>> events_;  // for each rank, without its receives
};

}  // namespace trestle::simulate
