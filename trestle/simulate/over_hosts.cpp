#include "trestle/simulate/over_hosts.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/schedule/routes.h"
#include "trestle/simulate/collective_queue.h"
#include "trestle/simulate/event_queue.h"
#include "trestle/simulate/host_ports.h"
#include "trestle/simulate/memory.h"
#include "trestle/simulate/message_flow.h"
#include "trestle/simulate/rank_programs.h"
#include "trestle/simulate/step_timeline.h"

namespace trestle::simulate {
namespace {

using schedule::Action;
using schedule::Event;
using schedule::Kind;
using schedule::Schedule;
using schedule::Timeline;
using schedule::Transfer;
using Way = Transfer::Way;

int host_count(const Network& network) {
  int count = 0;
  for (const auto& row : network.hosts)
    for (const int host : row) count = std::max(count, host + 1);
  for (const StageTraffic& stage : network.stages)
    for (const int host : stage.hosts) count = std::max(count, host + 1);
  return count;
}

class OverHosts {
 public:
  OverHosts(const Schedule& schedule, const Costs& costs)
      : schedule_(schedule),
        costs_(costs),
        routes_(schedule),
        ports_(costs.network->link, host_count(*costs.network)),
        messages_(schedule, costs, events_, ports_, [this](int rank) { wake(rank); }),
        collectives_(*costs.network, events_, ports_, [this](int rank) { wake(rank); }) {
    for (const auto& route : schedule_.routes) inside_.push_back(within_rank(schedule_, route));
  }

  Timeline run() {
    RankPrograms programs(schedule_, costs_, messages_, collectives_);
    norms_to_come_ = programs.norms();
    rows_.resize(schedule_.ranks.size());
    for (std::size_t rank = 0; rank < rows_.size(); ++rank) {
      rows_[rank].steps = programs.of_rank(static_cast<int>(rank));
      wake(static_cast<int>(rank));
    }
    events_.run();
    for (std::size_t rank = 0; rank < rows_.size(); ++rank) {
      const Row& row = rows_[rank];
      if (row.next < row.steps.size()) throw_stuck(schedule_, rank, row.steps[row.next].action);
    }
    return timeline();
  }

 private:
  struct Row {
    std::vector<Step> steps;
    std::size_t next = 0;
    bool in_action = false;
    double begun = 0;  // the action that runs
    std::vector<Event> events;
  };

  void wake(int rank) {
    events_.at(events_.now(), [this, rank] { advance(rank); });
  }

  // Whether the rank may run now. With Concurrency::OneThread only the rank with the thread may.
  bool has_thread(int rank) {
    if (costs_.concurrency == Concurrency::EachRank) return true;
    if (!thread_) thread_ = rank;
    if (*thread_ != rank) wait_for_thread_.insert(rank);
    return *thread_ == rank;
  }

  // Gives the thread to the next rank that waits for it, unless an action holds it.
  void leave_thread(int rank) {
    if (thread_ != rank || rows_[static_cast<std::size_t>(rank)].in_action) return;
    thread_.reset();
    if (wait_for_thread_.empty()) return;
    auto next = wait_for_thread_.upper_bound(rank);
    if (next == wait_for_thread_.end()) next = wait_for_thread_.begin();
    thread_ = wait_for_thread_.extract(next).value();
    wake(*thread_);
  }

  // Runs the rank's steps until one takes time or must wait.
  void advance(int rank) {
    if (!has_thread(rank)) return;
    Row& row = rows_[static_cast<std::size_t>(rank)];
    while (row.next < row.steps.size()) {
      const Step& step = row.steps[row.next];
      if (step.what == Step::What::Compute) {
        ++row.next;
        if (step.seconds <= 0) continue;
        return events_.at(events_.now() + step.seconds, [this, rank] { advance(rank); });
      }
      if (!perform(step, row, rank)) return leave_thread(rank);
      ++row.next;
    }
    leave_thread(rank);
  }

  // Returns false if the rank must wait; it is woken then.
  bool perform(const Step& step, Row& row, int rank) {
    const Action& action = schedule_.ranks[static_cast<std::size_t>(rank)][step.action];
    switch (step.what) {
      case Step::What::Take:
        return messages_.take(step.number, rank);
      case Step::What::Have:
        return messages_.has(step.number, rank);
      case Step::What::SendTie:
        messages_.send_tie(messages_.transfer_at(step.number), rank);
        return true;
      case Step::What::Start:
        collectives_.begin(step.number);
        return true;
      case Step::What::Wait:
        return collectives_.is_done(step.number);
      case Step::What::AwaitNorms:
        if (norms_to_come_ > 0) wait_for_norms_.push_back(rank);
        return norms_to_come_ == 0;
      case Step::What::BeginAction:
        row.begun = events_.now();
        row.in_action = true;
        return true;
      case Step::What::EndAction:
        end(action, row, rank);
        row.in_action = false;
        return true;
      case Step::What::Compute:
        break;
    }
    return true;
  }

  void end(const Action& action, Row& row, int rank) {
    row.events.push_back({rank, action, row.begun, events_.now()});
    if (is_send(action.kind)) send(action, rank);
    if (action.kind == Kind::Norm && --norms_to_come_ == 0)
      for (const int waiting : std::exchange(wait_for_norms_, {})) wake(waiting);
    hand_over_inside(action);
  }

  void send(const Action& action, int rank) {
    const auto transfer = routes_.of(action);
    if (!transfer)
      throw UsageError(
          text("schedule '", schedule_.name, "' has no route for ", to_string(action)));
    messages_.send(*transfer, action, rank);
  }

  void hand_over_inside(const Action& action) {
    const auto all = [&](const std::vector<int>& routes, int micro_batch, Way way) {
      for (const int route : routes)
        if (inside_[static_cast<std::size_t>(route)])
          messages_.hand_over({.route = route, .micro_batch = micro_batch, .way = way});
    };
    if (const auto made = forward_in(action))
      all(routes_.out_of(made->stage), made->micro_batch, Way::Activation);
    if (const auto made = backward_in(action))
      all(routes_.into(made->stage), made->micro_batch, Way::Gradient);
  }

  Timeline timeline() {
    std::vector<std::vector<Event>> events;
    for (Row& row : rows_) events.push_back(std::move(row.events));
    Timeline timeline = timeline_of(schedule_, std::move(events), [&](const Transfer& transfer) {
      return messages_.arrival(messages_.place(transfer));
    });
    timeline.crossings = ports_.crossings();
    timeline.host_of_rank.assign(rows_.size(), 0);
    for (std::size_t stage = 0; stage < schedule_.rank_of_stage.size(); ++stage)
      timeline.host_of_rank[static_cast<std::size_t>(schedule_.rank_of_stage[stage])] =
          costs_.network->hosts[0][stage];
    std::stable_sort(timeline.crossings.begin(), timeline.crossings.end(),
                     [](const auto& a, const auto& b) {
                       return std::pair(a.host, a.begin) < std::pair(b.host, b.begin);
                     });
    fill_memory(&timeline, costs_);
    return timeline;
  }

  const Schedule& schedule_;
  const Costs& costs_;
  schedule::RouteTable routes_;
  EventQueue events_;
  HostPorts ports_;
  MessageFlow messages_;
  CollectiveQueue collectives_;
  int norms_to_come_ = 0;
  std::vector<int> wait_for_norms_;  // ranks
  std::vector<bool> inside_;         // [route] whether it stays on one rank
  std::vector<Row> rows_;
  std::optional<int> thread_;      // Concurrency::OneThread: the rank that has the thread
  std::set<int> wait_for_thread_;  // ranks
};

}  // namespace

Timeline simulate_over_hosts(const Schedule& schedule, const Costs& costs) {
  return OverHosts(schedule, costs).run();
}

}  // namespace trestle::simulate
