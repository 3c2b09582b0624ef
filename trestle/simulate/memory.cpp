#include "trestle/simulate/memory.h"

#include <algorithm>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

#include "trestle/schedule/routes.h"

namespace trestle::simulate {
namespace {

using schedule::Action;
using schedule::Cell;
using schedule::Event;
using schedule::Kind;
using schedule::Route;
using schedule::Timeline;
using schedule::Transfer;
using Way = schedule::Transfer::Way;

using Key = std::pair<int, int>;  // stage, micro-batch

class Ledger {
 public:
  Ledger(Timeline* timeline, const Costs& costs) : timeline_(*timeline), costs_(costs) {
    changes_.resize(static_cast<std::size_t>(timeline_.rank_count));
    const schedule::RouteTable routes(timeline_.stages, timeline_.routes);
    for (const Event& event : timeline_.events) {
      const Action& action = event.action;
      if (const auto cell = forward_in(action)) forwards_[key(*cell)] = event;
      if (const auto cell = backward_in(action)) backwards_[key(*cell)] = event;
      const Key own{action.stage, action.micro_batch};
      if (action.kind == Kind::Recompute) recomputes_[own] = event;
      if (action.kind == Kind::WeightGrad) weight_grads_[own] = event;
      note_gradients(event);
      const auto transfer = routes.of(action);
      if (transfer && is_send(action.kind)) sent_[*transfer] = event.begin;
      if (transfer && is_receive(action.kind)) arrived_[*transfer] = event.end;
    }
  }

  void fill() {
    for (const auto& [cell, event] : forwards_) add_graph(cell, event);
    for (const Event& event : timeline_.events) add_transient(event);
    for (const auto& [stage, event] : first_gradients_)
      hold(event.rank, cost(stage).gradients, event.end, makespan(timeline_));
    for (std::size_t stage = 0; stage < costs_.stages.size(); ++stage)
      add_whole_batch_loss(static_cast<int>(stage));
    for (std::size_t index = 0; index < timeline_.routes.size(); ++index) add_route(index);
    for (int rank = 0; rank < timeline_.rank_count; ++rank) sum(rank);
  }

 private:
  static Key key(const Cell& cell) { return {cell.stage, cell.micro_batch}; }

  const StageCost& cost(int stage) const { return costs_.stages[static_cast<std::size_t>(stage)]; }

  void hold(int rank, Bytes bytes, double begin, double end) {
    if (bytes == 0 || end <= begin) return;
    auto& changes = changes_[static_cast<std::size_t>(rank)];
    changes.push_back({begin, bytes});
    changes.push_back({end, -bytes});
  }

  // The first action of each stage that makes parameter gradients.
  void note_gradients(const Event& event) {
    const bool makes = event.action.kind == Kind::WeightGrad ||
                       event.action.kind == Kind::Backward ||
                       event.action.kind == Kind::OverlapForwardBackward;
    if (!makes) return;
    const int stage = event.action.kind == Kind::OverlapForwardBackward ? event.action.partner_stage
                                                                        : event.action.stage;
    const auto [found, first] = first_gradients_.try_emplace(stage, event);
    if (!first && event.begin < found->second.begin) found->second = event;
  }

  Bytes transient_backward(const Event& event, int stage) const {
    const StageCost& own = cost(stage);
    const auto found = first_gradients_.find(stage);
    const bool first = found != first_gradients_.end() && found->second.action == event.action;
    if (!first) return own.transient_backward;
    return own.transient_first_backward > 0 ? own.transient_first_backward
                                            : own.transient_backward + own.gradients;
  }

  void add_graph(const Key& cell, const Event& forward) {
    const StageCost& stage = cost(cell.first);
    double freed = makespan(timeline_);
    if (const auto found = backwards_.find(cell); found != backwards_.end())
      freed = found->second.end;
    if (const auto found = weight_grads_.find(cell); found != weight_grads_.end())
      freed = found->second.end;
    double built = forward.begin;
    if (const auto found = recomputes_.find(cell); found != recomputes_.end()) {
      built = found->second.begin;
      hold(forward.rank, stage.kept_for_recompute, forward.begin, built);
    }
    hold(forward.rank, stage.saved, built, freed);
  }

  void add_transient(const Event& event) {
    const Action& action = event.action;
    switch (action.kind) {
      case Kind::Forward:
      case Kind::Recompute:
        return hold(event.rank, cost(action.stage).transient_forward, event.begin, event.end);
      case Kind::Backward:
      case Kind::InputGrad:
      case Kind::WeightGrad:
        return hold(event.rank, transient_backward(event, action.stage), event.begin, event.end);
      case Kind::OverlapForwardBackward:
        hold(event.rank, cost(action.stage).transient_forward, event.begin, event.end);
        return hold(event.rank, transient_backward(event, action.partner_stage), event.begin,
                    event.end);
      default:
        return;
    }
  }

  // Comes before the backward proper in the stage's first B, so only what it needs beyond that adds
  // to the peak.
  void add_whole_batch_loss(int stage) {
    const StageCost& own = cost(stage);
    const Event* first = nullptr;
    for (auto it = backwards_.lower_bound({stage, 0});
         it != backwards_.end() && it->first.first == stage; ++it) {
      if (!first || it->second.begin < first->begin) first = &it->second;
    }
    if (!first) return;
    hold(first->rank, own.loss_kept, first->begin, makespan(timeline_));
    hold(first->rank, std::max<Bytes>(0, own.loss_transient - transient_backward(*first, stage)),
         first->begin, first->end);
  }

  // How long one end or the other holds what travels on a route.
  void add_route(std::size_t index) {
    if (index >= costs_.routes.size()) return;
    const Route& route = timeline_.routes[index];
    const Bytes bytes = costs_.routes[index].bytes;
    const auto add = [&](const std::map<Key, Event>& side, Way way, int from, int to) {
      for (auto made = side.lower_bound({from, 0}); made != side.end() && made->first.first == from;
           ++made) {
        const int micro_batch = made->first.second;
        const auto taken = side.find({to, micro_batch});
        if (taken == side.end()) continue;
        const Transfer transfer{static_cast<int>(index), micro_batch, way};
        const auto sent = sent_.find(transfer);
        const auto arrived = arrived_.find(transfer);
        const double made_at = made->second.end;
        if (costs_.transport == Transport::Pull) {
          const bool graph = way == Way::Activation && !recomputes_.contains(made->first);
          hold(made->second.rank, bytes - (graph ? costs_.routes[index].saved : 0), made_at,
               taken->second.begin);
          continue;
        }
        hold(made->second.rank, bytes, made_at, sent == sent_.end() ? made_at : sent->second);
        hold(taken->second.rank, bytes, arrived == arrived_.end() ? made_at : arrived->second,
             taken->second.begin);
      }
    };
    add(forwards_, Way::Activation, route.from_stage, route.to_stage);
    add(backwards_, Way::Gradient, route.to_stage, route.from_stage);
  }

  void sum(int rank) {
    Bytes now = 0;
    for (std::size_t stage = 0; stage < timeline_.rank_of_stage.size(); ++stage) {
      if (timeline_.rank_of_stage[stage] == rank) now += costs_.stages[stage].persistent;
    }
    Bytes peak = now;
    auto& changes = changes_[static_cast<std::size_t>(rank)];
    std::sort(changes.begin(), changes.end());
    if (changes.empty() || changes.front().first > 0) timeline_.memory.push_back({rank, 0, now});
    for (std::size_t i = 0; i < changes.size(); ++i) {
      now += changes[i].second;
      peak = std::max(peak, now);
      if (i + 1 < changes.size() && changes[i + 1].first == changes[i].first) continue;
      timeline_.memory.push_back({rank, changes[i].first, now});
    }
    timeline_.peak_bytes.push_back(peak);
  }

  Timeline& timeline_;
  const Costs& costs_;
  std::map<Key, Event> forwards_;
  std::map<Key, Event> backwards_;
  std::map<Key, Event> recomputes_;
  std::map<Key, Event> weight_grads_;
  std::map<int, Event> first_gradients_;  // by stage
  std::map<Transfer, double> sent_;
  std::map<Transfer, double> arrived_;
  // Rises and falls of each rank; sorted, the falls of an instant come before its rises, so that
  // what ends does not meet what begins.
  std::vector<std::vector<std::pair<double, Bytes>>> changes_;
};

}  // namespace

void fill_memory(Timeline* timeline, const Costs& costs) { Ledger(timeline, costs).fill(); }

}  // namespace trestle::simulate
