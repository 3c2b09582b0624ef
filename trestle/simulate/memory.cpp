#include "trestle/simulate/memory.h"

#include <algorithm>
#include <cstddef>
#include <optional>
#include <utility>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/schedule/routes.h"
#include "trestle/simulate/memory_accounts.h"
#include "trestle/simulate/message_lifetime.h"
#include "trestle/simulate/prefetched_messages.h"

namespace trestle::simulate {
namespace {

using schedule::Action;
using schedule::Event;
using schedule::EventIndex;
using schedule::Kind;
using schedule::Route;
using schedule::Timeline;
using Way = schedule::Transfer::Way;

class Ledger {
 public:
  Ledger(const Timeline& timeline, const Costs& costs, const std::vector<int>& devices,
         MemoryAccounts* accounts)
      : timeline_(timeline),
        costs_(costs),
        devices_(devices),
        accounts_(*accounts),
        index_(timeline),
        end_(makespan(timeline)),
        first_gradients_(costs.stages.size(), nullptr),
        gradients_end_(costs.stages.size(), end_) {
    for (const Event& event : timeline_.events) note_gradients(event);
  }

  void fill() {
    for (std::size_t stage = 0; stage < costs_.stages.size(); ++stage) {
      const int number = static_cast<int>(stage);
      accounts_.keep(number, costs_.stages[stage].persistent);
      for (int i = 0; i < index_.micro_batches(); ++i) add_graph(number, i);
      if (costs_.gradients_at_start)
        accounts_.keep(number, costs_.stages[stage].gradients);
      else if (const Event* first = first_gradients_[stage])
        accounts_.hold(number, costs_.stages[stage].gradients, first->end, gradients_end_[stage]);
      add_whole_batch_loss(number);
    }
    for (const Event& event : timeline_.events) add_transient(event);
    for (const TieCost& tie : costs_.ties) add_tie(tie);
    const bool free = std::all_of(costs_.routes.begin(), costs_.routes.end(),
                                  [](const RouteCost& route) { return route.bytes == 0; });
    if (free) return;
    if (costs_.transfer_mode == TransferMode::Push) note_transfers();
    std::optional<MessageLifetime> lifetime;
    if (costs_.transfer_mode != TransferMode::Push && costs_.concurrency == Concurrency::EachRank)
      lifetime.emplace(timeline_, index_);
    if (costs_.transfer_mode == TransferMode::Prefetch && lifetime)
      prefetched_.emplace(timeline_, index_, *lifetime);
    for (std::size_t route = 0; route < costs_.routes.size(); ++route) {
      add_route(route, Way::Activation, lifetime);
      add_route(route, Way::Gradient, lifetime);
    }
  }

 private:
  const StageCost& cost(int stage) const { return costs_.stages[static_cast<std::size_t>(stage)]; }
  const Event& event(std::size_t at) const { return timeline_.events[at]; }

  // Stores each stage's first action that produces parameter gradients, and the end of its STEP.
  void note_gradients(const Event& event) {
    const Kind kind = event.action.kind;
    if (kind == Kind::Step)
      gradients_end_[static_cast<std::size_t>(event.action.stage)] = event.end;
    const bool overlap = kind == Kind::OverlapForwardBackward;
    if (kind != Kind::WeightGrad && kind != Kind::Backward && !overlap) return;
    const int stage = overlap ? event.action.partner_stage : event.action.stage;
    const Event*& first = first_gradients_[static_cast<std::size_t>(stage)];
    if (first == nullptr || event.begin < first->begin) first = &event;
  }

  Bytes transient_forward(int stage, int micro_batch) const {
    const StageCost& own = cost(stage);
    return index_.recompute(stage, micro_batch)
               ? std::max(own.transient_forward, own.transient_no_graph)
               : own.transient_forward;
  }

  Bytes transient_backward(const Event& event, int stage) const {
    const StageCost& own = cost(stage);
    const bool first =
        !costs_.gradients_at_start && first_gradients_[static_cast<std::size_t>(stage)] == &event;
    if (event.action.kind == Kind::WeightGrad && own.transient_weight_grad)
      return first ? own.transient_first_weight_grad.value_or(*own.transient_weight_grad +
                                                              own.gradients)
                   : *own.transient_weight_grad;
    if (!first) return own.transient_backward;
    return own.transient_first_backward > 0 ? own.transient_first_backward
                                            : own.transient_backward + own.gradients;
  }

  void add_graph(int stage, int micro_batch) {
    const auto forward = index_.forward(stage, micro_batch);
    if (!forward) return;
    const auto first = index_.backward(stage, micro_batch);
    const auto last = index_.last_backward(stage, micro_batch);
    const bool split = first && last && *first != *last;  // I and W
    double built = event(*forward).begin;
    const double freed = last ? event(*last).end : end_;
    const auto left = cost(stage).kept_for_weights;
    const double output_freed = split && left ? event(*first).end : freed;  // by the graph
    if (const auto again = index_.recompute(stage, micro_batch)) {
      accounts_.hold(stage, cost(stage).kept_for_recompute, built, event(*again).begin);
      accounts_.hold(stage, cost(stage).output_kept, built, output_freed);
      built = event(*again).begin;
      accounts_.hold(stage, cost(stage).recompute_excess, built, freed);
    }
    if (left && split) {
      accounts_.hold(stage, cost(stage).saved, built, event(*first).end);
      accounts_.hold(stage, *left, event(*first).end, freed);
    } else {
      accounts_.hold(stage, cost(stage).saved, built, freed);
    }
    accounts_.hold(stage, cost(stage).output_kept, output_freed, end_);
  }

  void add_transient(const Event& event) {
    const Action& action = event.action;
    const auto add = [&](int stage, Bytes bytes) {
      accounts_.hold(stage, bytes, event.begin, event.end);
    };
    switch (action.kind) {
      case Kind::Forward:
        return add(action.stage, transient_forward(action.stage, action.micro_batch));
      case Kind::Recompute:
        return add(action.stage, std::max(cost(action.stage).transient_forward,
                                          cost(action.stage).transient_recompute));
      case Kind::Backward:
      case Kind::InputGrad:
      case Kind::WeightGrad:
        return add(action.stage, transient_backward(event, action.stage));
      case Kind::OverlapForwardBackward:
        add(action.stage, transient_forward(action.stage, action.micro_batch));
        return add(action.partner_stage, transient_backward(event, action.partner_stage));
      default:
        return;
    }
  }

  // The loss runs in the stage's first B, before the backward. Only what it needs beyond that
  // backward's transient adds to the peak.
  void add_whole_batch_loss(int stage) {
    const StageCost& own = cost(stage);
    if (own.loss_kept == 0 && own.loss_transient == 0) return;
    const Event* first = nullptr;
    for (int i = 0; i < index_.micro_batches(); ++i) {
      const auto backward = index_.backward(stage, i);
      if (backward && (first == nullptr || event(*backward).begin < first->begin))
        first = &event(*backward);
    }
    if (first == nullptr) return;
    accounts_.hold(stage, own.loss_kept, first->begin, end_);
    accounts_.hold(stage,
                   std::max<Bytes>(0, own.loss_transient - transient_backward(*first, stage)),
                   first->begin, first->end);
  }

  // Whether the gradient of a tied parameter is received after this backward, the last one of the
  // owner's stage: other stages of its rank follow, and no replica reduces gradients.
  bool is_received_later(const Event& last) const {
    bool more = false;
    for (const Event& other : timeline_.events) {
      if (other.rank != last.rank) continue;
      if (other.action.kind == Kind::ReduceGrad && other.action.stage == last.action.stage)
        return false;
      more = more || (schedule::is_compute(other.action.kind) && other.begin > last.begin);
    }
    return more;
  }

  // The messages of a tied parameter between two devices. The gradient arrives before the last B of
  // the owner's stage, while the graph of that B exists, or as the rank's row ends.
  void add_tie(const TieCost& tie) {
    if (devices_[static_cast<std::size_t>(tie.owner)] ==
        devices_[static_cast<std::size_t>(tie.copy)])
      return;
    const Event* first_forward = nullptr;  // of the copy's stage
    const Event *sent = nullptr, *taken = nullptr;
    int backwards = 0;  // of the owner's stage
    for (int i = 0; i < index_.micro_batches(); ++i) {
      const auto later = [&](std::optional<std::size_t> found, const Event** last) {
        if (found && (*last == nullptr || event(*found).begin > (*last)->begin))
          *last = &event(*found);
        return found ? 1 : 0;
      };
      const auto forward = index_.forward(tie.copy, i);
      if (forward && (first_forward == nullptr || event(*forward).begin < first_forward->begin))
        first_forward = &event(*forward);
      later(index_.last_backward(tie.copy, i), &sent);
      backwards += later(index_.last_backward(tie.owner, i), &taken);
    }
    if (first_forward != nullptr) accounts_.hold(tie.copy, tie.bytes, 0, first_forward->begin);
    if (tie.frozen || sent == nullptr || taken == nullptr || tie.owner > tie.copy) return;
    if (is_received_later(*taken))
      return accounts_.hold(tie.owner, tie.bytes, std::min(sent->end, taken->end), end_);
    const bool is_first = backwards == 1 && !costs_.gradients_at_start;
    Bytes arrived = tie.bytes;  // with the gradients of the stage's outputs, which that B frees
    for (std::size_t route = 0; route < costs_.routes.size(); ++route)
      if (timeline_.routes[route].from_stage == tie.owner && taken->action.kind != Kind::WeightGrad)
        arrived += costs_.routes[route].bytes;
    accounts_.hold(
        tie.owner,
        is_first ? tie.bytes : std::max<Bytes>(0, arrived - transient_backward(*taken, tie.owner)),
        taken->begin, taken->end);
    if (costs_.transfer_mode != TransferMode::Pull)
      accounts_.hold(tie.owner, tie.bytes, sent->end, taken->begin);
  }

  struct Sent {
    double departs = 0;
    double arrives = 0;
    bool known = false;  // false for a transfer within a rank
  };
  Sent& sent(int route, int micro_batch, Way way) {
    const auto message =
        static_cast<std::size_t>(route) * static_cast<std::size_t>(index_.micro_batches()) +
        static_cast<std::size_t>(micro_batch);
    return sent_[2 * message + (way == Way::Gradient ? 1 : 0)];
  }

  void note_transfers() {
    const schedule::RouteTable routes(timeline_.stages, timeline_.routes);
    sent_.resize(2 * timeline_.routes.size() * static_cast<std::size_t>(index_.micro_batches()));
    for (const Event& event : timeline_.events) {
      const auto transfer = routes.of(event.action);
      if (!transfer) continue;
      Sent& message = sent(transfer->route, transfer->micro_batch, transfer->way);
      message.known = true;
      (is_send(event.action.kind) ? message.departs : message.arrives) = event.end;
    }
  }

  // Adds what the sender and the receiver hold of a route's messages.
  void add_route(std::size_t at, Way way, const std::optional<MessageLifetime>& lifetime) {
    const RouteCost& own = costs_.routes[at];
    if (own.bytes == 0) return;
    const Route& route = timeline_.routes[at];
    const bool activation = way == Way::Activation;
    const int from = activation ? route.from_stage : route.to_stage;
    const int to = activation ? route.to_stage : route.from_stage;
    const bool one_device =
        devices_[static_cast<std::size_t>(from)] == devices_[static_cast<std::size_t>(to)];
    for (int i = 0; i < index_.micro_batches(); ++i) {
      const auto made = activation ? index_.forward(from, i) : index_.backward(from, i);
      const auto taken = activation ? index_.forward(to, i) : index_.backward(to, i);
      if (!made || !taken) continue;
      const double begin = event(*made).end;
      const double end = event(*taken).begin;
      const Bytes held = own.bytes + (activation ? own.activation_excess : 0);
      if (costs_.transfer_mode == TransferMode::Push) {
        const Sent& message = sent(static_cast<int>(at), i, way);
        accounts_.hold(from, held, begin, message.known ? message.departs : begin);
        accounts_.hold(to, own.bytes, message.known ? message.arrives : begin, end);
        continue;
      }
      const bool graph = activation && !index_.recompute(from, i);
      if (const auto* sent =
              prefetched_ ? prefetched_->find({static_cast<int>(at), i, way}) : nullptr) {
        accounts_.hold(from, held - (graph ? own.saved : 0), begin,
                       std::max(begin, sent->sender_until));
        accounts_.hold(to, own.bytes, std::min(sent->receiver_from, end), end);
        continue;
      }
      const bool exact = one_device || !lifetime;
      accounts_.hold(from, held - (graph ? own.saved : 0), begin,
                     exact ? end : lifetime->latest_end(event(*taken), event(*made).rank));
    }
  }

  const Timeline& timeline_;
  const Costs& costs_;
  const std::vector<int>& devices_;
  MemoryAccounts& accounts_;
  EventIndex index_;
  double end_;
  std::vector<const Event*> first_gradients_;  // for each stage
  std::vector<double> gradients_end_;          // the same
  std::vector<Sent> sent_;                     // by route, micro-batch and way
  std::optional<PrefetchedMessages> prefetched_;
};

std::vector<int> devices_of(const Timeline& timeline, const Costs& costs) {
  if (costs.device_of_stage.empty()) return timeline.rank_of_stage;
  const bool whole = costs.device_of_stage.size() == timeline.rank_of_stage.size();
  if (whole && *std::min_element(costs.device_of_stage.begin(), costs.device_of_stage.end()) >= 0)
    return costs.device_of_stage;
  throw UsageError(text("device_of_stage is [", join(costs.device_of_stage, ", "), "] for ",
                        timeline.rank_of_stage.size(), " stages"),
                   {.hint = "Give a number from 0 for each stage, or leave it empty."});
}

}  // namespace

void fill_memory(Timeline* timeline, const Costs& costs) {
  timeline->device_of_stage = devices_of(*timeline, costs);
  MemoryAccounts accounts(timeline->rank_of_stage, timeline->device_of_stage);
  Ledger(*timeline, costs, timeline->device_of_stage, &accounts).fill();
  accounts.sum(timeline);
}

}  // namespace trestle::simulate
