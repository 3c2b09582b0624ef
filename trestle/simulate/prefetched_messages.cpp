#include "trestle/simulate/prefetched_messages.h"

#include <algorithm>
#include <cstddef>
#include <utility>
#include <vector>

namespace trestle::simulate {

using schedule::Event;
using schedule::EventIndex;
using schedule::Timeline;
using schedule::Transfer;

namespace {

constexpr std::size_t fetched = 2;

}  // namespace

PrefetchedMessages::PrefetchedMessages(const Timeline& timeline, const EventIndex& index,
                                       const MessageLifetime& lifetime) {
  const schedule::RouteTable routes(timeline.stages, timeline.routes);
  const auto ranks = static_cast<std::size_t>(timeline.rank_count);
  std::vector<double> gone(ranks, 0);
  std::vector<std::vector<std::pair<double, Held*>>> coming(ranks);
  for (const Event& event : timeline.events) {
    if (!is_send(event.action.kind)) continue;
    const auto transfer = routes.of(event.action);
    if (!transfer) continue;
    const auto& route = timeline.routes[static_cast<std::size_t>(transfer->route)];
    const auto at = transfer->way == Transfer::Way::Activation
                        ? index.forward(route.to_stage, transfer->micro_batch)
                        : index.backward(route.from_stage, transfer->micro_batch);
    if (!at) continue;
    const Event& taken = timeline.events[*at];
    double& until = gone[static_cast<std::size_t>(event.rank)];
    until = std::max(until, lifetime.latest_end(taken, event.rank));
    Held& held = held_[*transfer];
    held.sender_until = until;
    coming[static_cast<std::size_t>(taken.rank)].emplace_back(taken.begin, &held);
  }
  for (auto& messages : coming) {
    std::stable_sort(messages.begin(), messages.end(),
                     [](const auto& a, const auto& b) { return a.first < b.first; });
    for (std::size_t i = fetched; i < messages.size(); ++i)
      messages[i].second->receiver_from = messages[i - fetched].first;
  }
}

const PrefetchedMessages::Held* PrefetchedMessages::find(const Transfer& transfer) const {
  const auto found = held_.find(transfer);
  return found == held_.end() ? nullptr : &found->second;
}

}  // namespace trestle::simulate
