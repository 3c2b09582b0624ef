#include "trestle/schedule/timeline.h"

#include <algorithm>
#include <limits>
#include <map>
#include <utility>

namespace trestle::schedule {
namespace {

double total_busy(const Timeline& timeline) {
  double sum = 0;
  for (int rank = 0; rank < timeline.rank_count; ++rank) sum += busy(timeline, rank);
  return sum;
}

}  // namespace

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

double busy(const Timeline& timeline, int rank) {
  double sum = 0;
  for (const auto& event : timeline.events) {
    if (event.rank == rank && is_compute(event.action.kind)) sum += event.end - event.begin;
  }
  return sum;
}

double idle_share_of_makespan(const Timeline& timeline) {
  const double all = timeline.rank_count * makespan(timeline);
  return all > 0 ? 1 - total_busy(timeline) / all : 0;
}

double idle_share_of_ideal(const Timeline& timeline) {
  const double work = total_busy(timeline);
  return work > 0 ? timeline.rank_count * makespan(timeline) / work - 1 : 0;
}

std::vector<int> peak_live_activations(const Timeline& timeline) {
  struct Life {
    int rank = 0;
    double begin = 0;
    double end = 0;
  };
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::map<std::pair<int, int>, Life> lives;  // by stage and micro-batch
  for (const auto& event : timeline.events) {
    const Action& action = event.action;
    const auto begin = [&](int stage, int micro_batch) {
      lives[{stage, micro_batch}] = {event.rank, event.begin, kNever};
    };
    const auto end = [&](int stage, int micro_batch) {
      const auto life = lives.find({stage, micro_batch});
      if (life != lives.end()) life->second.end = event.end;
    };
    if (action.kind == Kind::Forward) begin(action.stage, action.micro_batch);
    if (action.kind == Kind::Backward || action.kind == Kind::WeightGrad)
      end(action.stage, action.micro_batch);
    if (action.kind == Kind::OverlapForwardBackward) {
      begin(action.stage, action.micro_batch);
      end(action.partner_stage, action.partner_micro_batch);
    }
  }
  // +1 at each begin, -1 at each end; where both fall together the end comes first.
  std::vector<std::vector<std::pair<double, int>>> changes(
      static_cast<std::size_t>(timeline.rank_count));
  for (const auto& [cell, life] : lives) {
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
