#include "trestle/simulate/step_timeline.h"

#include <algorithm>
#include <iterator>

#include "trestle/base/text.h"
#include "trestle/schedule/table_error.h"

namespace trestle::simulate {

using schedule::Event;
using schedule::Timeline;

Timeline timeline_of(const schedule::Schedule& schedule, std::vector<std::vector<Event>> events,
                     std::vector<std::vector<Event>> receives) {
  Timeline timeline;
  timeline.title = text("simulated ", schedule.name);
  timeline.stages = schedule.stages;
  timeline.micro_batches = schedule.micro_batches;
  timeline.rank_count = schedule.rank_count();
  timeline.rank_of_stage = schedule.rank_of_stage;
  timeline.routes = schedule.routes;
  std::size_t all = 0;
  for (const auto& actions : schedule.ranks) all += actions.size();
  timeline.events.reserve(all);
  const auto earlier = [](const Event& a, const Event& b) { return a.begin < b.begin; };
  for (std::size_t rank = 0; rank < events.size(); ++rank) {
    std::stable_sort(receives[rank].begin(), receives[rank].end(), earlier);
    std::merge(events[rank].begin(), events[rank].end(), receives[rank].begin(),
               receives[rank].end(), std::back_inserter(timeline.events), earlier);
  }
  return timeline;
}

void throw_stuck(const schedule::Schedule& schedule, std::size_t rank, std::size_t next) {
  throw schedule::TableError(
      schedule, {.rule = text("rank ", rank, " gets stuck: it waits for ever before ",
                              to_string(schedule.ranks[rank][next])),
                 .hint = "Its input is never produced or never sent; validate() gives details.",
                 .cell = schedule::GridCell{static_cast<int>(rank), next}});
}

}  // namespace trestle::simulate
