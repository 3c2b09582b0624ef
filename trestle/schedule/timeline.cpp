#include "trestle/schedule/timeline.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <set>
#include <tuple>
#include <utility>

#include "trestle/base/text.h"
#include "trestle/schedule/routes.h"

namespace trestle::schedule {
namespace {

double total_busy(const Timeline& timeline) {
  const std::vector<double> ranks = busy(timeline);
  return std::accumulate(ranks.begin(), ranks.end(), 0.0);
}

}  // namespace

std::string rank_name(const Timeline& timeline, int rank) {
  const auto place = static_cast<std::size_t>(rank);
  return text("rank ", place < timeline.world_ranks.size() ? timeline.world_ranks[place] : rank);
}

std::vector<int> hosts_of(const Timeline& timeline) {
  const std::set<int> hosts(timeline.host_of_rank.begin(), timeline.host_of_rank.end());
  return {hosts.begin(), hosts.end()};
}

void add_measured_crossings(Timeline* timeline, std::vector<int> host_of_rank) {
  timeline->host_of_rank = std::move(host_of_rank);
  const auto host_of = [&](int rank) {
    return timeline->host_of_rank.at(static_cast<std::size_t>(rank));
  };
  const RouteTable routes(timeline->stages, timeline->routes);
  std::map<Transfer, const Event*> receives;
  for (const Event& event : timeline->events)
    if (const auto transfer = routes.of(event.action); transfer && is_receive(event.action.kind))
      receives[*transfer] = &event;
  for (const Event& event : timeline->events) {
    Crossing crossing{.host = host_of(event.rank),
                      .rank = event.rank,
                      .action = event.action,
                      .begin = event.begin,
                      .end = event.end};
    const Kind kind = event.action.kind;
    if (is_send(kind)) {
      const auto transfer = routes.of(event.action);
      const auto taken = transfer ? receives.find(*transfer) : receives.end();
      if (taken == receives.end() || host_of(taken->second->rank) == crossing.host) continue;
      crossing.end = std::max(event.begin, taken->second->end);
    } else if (kind != Kind::Unshard && kind != Kind::ReduceGrad) {
      continue;
    }
    timeline->crossings.push_back(crossing);
  }
  std::stable_sort(timeline->crossings.begin(), timeline->crossings.end(),
                   [](const auto& a, const auto& b) {
                     return std::tie(a.host, a.begin) < std::tie(b.host, b.begin);
                   });
}

TensorTimes tensor_times(const Timeline& timeline, int rank) {
  TensorTimes times;
  for (const TensorMessage& message : timeline.tensor_messages) {
    if (message.rank != rank) continue;
    ++times.messages;
    times.hidden += message.hidden();
    times.exposed += message.exposed();
  }
  return times;
}

std::string_view tensor_message_name(MessageKind kind) {
  switch (kind) {
    case MessageKind::AllReduce:
    case MessageKind::ReduceScatter:
      return "REDUCE";
    case MessageKind::AllGather:
      return "GATHER";
    case MessageKind::AllToAll:
      break;
  }
  return "EXCHANGE";
}

double makespan(const Timeline& timeline) {
  if (timeline.events.empty()) return 0;
  double first = timeline.events.front().begin;
  double last = timeline.events.front().end;
  for (const auto& event : timeline.events) {
    first = std::min(first, event.begin);
    last = std::max(last, event.end);
  }
  return last - first;
}

std::vector<double> busy(const Timeline& timeline) {
  std::vector<double> sums(static_cast<std::size_t>(timeline.rank_count), 0);
  for (const auto& event : timeline.events) {
    const bool known = event.rank >= 0 && event.rank < timeline.rank_count;
    if (known && is_compute(event.action.kind))
      sums[static_cast<std::size_t>(event.rank)] += event.end - event.begin;
  }
  return sums;
}

double idle_share_of_makespan(const Timeline& timeline) {
  const double all = timeline.rank_count * makespan(timeline);
  return all > 0 ? 1 - total_busy(timeline) / all : 0;
}

double idle_share_of_ideal(const Timeline& timeline) {
  const double work = total_busy(timeline);
  return work > 0 ? timeline.rank_count * makespan(timeline) / work - 1 : 0;
}

double makespan_bubble(const Timeline& timeline) {
  const std::vector<double> seconds = busy(timeline);
  return makespan(timeline) - *std::max_element(seconds.begin(), seconds.end());
}

double span_bubble(const Timeline& timeline) {
  const std::vector<double> seconds = busy(timeline);
  std::vector<std::pair<double, double>> spans(seconds.size(), {INFINITY, 0});
  for (const Event& event : timeline.events) {
    if (!is_compute(event.action.kind)) continue;
    auto& [first, last] = spans[static_cast<std::size_t>(event.rank)];
    first = std::min(first, event.begin);
    last = std::max(last, event.end);
  }
  double longest = 0;
  for (std::size_t rank = 0; rank < spans.size(); ++rank)
    longest = std::max(longest, spans[rank].second - spans[rank].first - seconds[rank]);
  return longest;
}

EventIndex::EventIndex(const Timeline& timeline) {
  const auto each = [&](const auto& visit) {
    for (std::size_t at = 0; at < timeline.events.size(); ++at) {
      const Action& action = timeline.events[at].action;
      if (const auto cell = forward_in(action)) visit(ForwardPart, *cell, at);
      if (const auto cell = backward_in(action)) visit(BackwardPart, *cell, at);
      const Cell own{action.stage, action.micro_batch};
      if (action.kind == Kind::WeightGrad) visit(WeightGradPart, own, at);
      if (action.kind == Kind::Recompute) visit(RecomputePart, own, at);
    }
  };
  each([&](Part, const Cell& cell, std::size_t) {
    stages_ = std::max(stages_, cell.stage + 1);
    micro_batches_ = std::max(micro_batches_, cell.micro_batch + 1);
  });
  events_.assign(
      static_cast<std::size_t>(stages_) * static_cast<std::size_t>(micro_batches_) * PartCount, -1);
  each([&](Part part, const Cell& cell, std::size_t at) {
    if (cell.stage < 0 || cell.micro_batch < 0) return;
    std::int32_t& event = events_[slot(part, cell.stage, cell.micro_batch)];
    if (event < 0) event = static_cast<std::int32_t>(at);
  });
}

std::size_t EventIndex::slot(Part part, int stage, int micro_batch) const {
  const auto cell = static_cast<std::size_t>(stage) * static_cast<std::size_t>(micro_batches_) +
                    static_cast<std::size_t>(micro_batch);
  return cell * PartCount + part;
}

std::optional<std::size_t> EventIndex::find(Part part, int stage, int micro_batch) const {
  const bool known =
      stage >= 0 && stage < stages_ && micro_batch >= 0 && micro_batch < micro_batches_;
  const std::int32_t event = known ? events_[slot(part, stage, micro_batch)] : -1;
  if (event < 0) return std::nullopt;
  return static_cast<std::size_t>(event);
}

std::optional<std::size_t> EventIndex::forward(int stage, int micro_batch) const {
  return find(ForwardPart, stage, micro_batch);
}
std::optional<std::size_t> EventIndex::backward(int stage, int micro_batch) const {
  return find(BackwardPart, stage, micro_batch);
}
std::optional<std::size_t> EventIndex::weight_grad(int stage, int micro_batch) const {
  return find(WeightGradPart, stage, micro_batch);
}
std::optional<std::size_t> EventIndex::recompute(int stage, int micro_batch) const {
  return find(RecomputePart, stage, micro_batch);
}
std::optional<std::size_t> EventIndex::last_backward(int stage, int micro_batch) const {
  const auto weight = weight_grad(stage, micro_batch);
  return weight ? weight : backward(stage, micro_batch);
}

std::vector<ActivationLife> activation_lives(const Timeline& timeline) {
  const EventIndex index(timeline);
  std::vector<ActivationLife> lives;
  for (int stage = 0; stage < index.stages(); ++stage) {
    for (int i = 0; i < index.micro_batches(); ++i) {
      const auto forward = index.forward(stage, i);
      if (!forward) continue;
      const Event& event = timeline.events[*forward];
      const auto last = index.last_backward(stage, i);
      lives.push_back(
          {.rank = event.rank,
           .begin = event.begin,
           .end = last ? timeline.events[*last].end : std::numeric_limits<double>::infinity()});
    }
  }
  return lives;
}

std::vector<int> peak_live_activations(const Timeline& timeline) {
  // +1 at each begin, -1 at each end; at equal times the end comes first.
  std::vector<std::vector<std::pair<double, int>>> changes(
      static_cast<std::size_t>(timeline.rank_count));
  for (const ActivationLife& life : activation_lives(timeline)) {
    changes.at(static_cast<std::size_t>(life.rank)).emplace_back(life.begin, 1);
    changes.at(static_cast<std::size_t>(life.rank)).emplace_back(life.end, -1);
  }
  std::vector<int> peaks;
  for (auto& of_rank : changes) {
    std::sort(of_rank.begin(), of_rank.end());
    int now = 0;
    int peak = 0;
    for (const auto& [time, change] : of_rank) {
      now += change;
      peak = std::max(peak, now);
    }
    peaks.push_back(peak);
  }
  return peaks;
}

}  // namespace trestle::schedule
