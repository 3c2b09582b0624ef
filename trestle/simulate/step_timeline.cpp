#include "trestle/simulate/step_timeline.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/schedule/table_error.h"

namespace trestle::simulate {

using schedule::Event;
using schedule::Schedule;
using schedule::Timeline;

namespace {

bool earlier(const Event& a, const Event& b) { return a.begin < b.begin; }

std::vector<Event> receives_of(const Schedule& schedule, std::size_t rank,
                               const schedule::RouteTable& routes, const ArrivalOf& arrival_of) {
  std::vector<Event> receives;
  for (const schedule::Action& action : schedule.ranks[rank]) {
    if (!is_receive(action.kind)) continue;
    const auto transfer = routes.of(action);
    const auto time = transfer ? arrival_of(*transfer) : std::nullopt;
    if (!time)
      throw UsageError(
          text("schedule '", schedule.name, "': no message is ever sent to ", to_string(action)));
    receives.push_back({static_cast<int>(rank), action, *time, *time});
  }
  std::stable_sort(receives.begin(), receives.end(), earlier);
  return receives;
}

}  // namespace

Timeline timeline_of(const Schedule& schedule, std::vector<std::vector<Event>> events,
                     const ArrivalOf& arrival_of) {
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
  const schedule::RouteTable routes(schedule);
  for (std::size_t rank = 0; rank < events.size(); ++rank) {
    const std::vector<Event> receives = receives_of(schedule, rank, routes, arrival_of);
    const std::vector<Event> others = std::exchange(events[rank], {});  // releases their memory
    std::merge(others.begin(), others.end(), receives.begin(), receives.end(),
               std::back_inserter(timeline.events), earlier);
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
