#include "trestle/parallel/shard_timeline.h"

#include <algorithm>
#include <chrono>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/pipeline/execute/rank_timeline.h"

namespace trestle {
namespace {

using What = ShardEvent::What;

schedule::Action action_of(const ShardEvent& event, std::int64_t first_step) {
  const int part = std::max(event.part, 0);
  const int step = static_cast<int>(event.step - first_step);
  schedule::Action action = schedule::forward(part, step);
  if (event.what == What::Backward) action = schedule::backward(part, step);
  if (event.what == What::Gather) action = {.kind = schedule::Kind::Unshard};
  if (event.what == What::Reduce) action = {.kind = schedule::Kind::ReduceGrad};
  action.stage = static_cast<std::int16_t>(part);
  return action;
}

double since_epoch(std::chrono::steady_clock::time_point time) {
  return std::chrono::duration<double>(time.time_since_epoch()).count();
}

}  // namespace

schedule::Timeline shard_timeline(const ShardRecord& record, const comm::Group& ranks) {
  schedule::Timeline own;
  own.title = "measured";
  own.rank_count = ranks.size();
  const bool in_units = !record.units.empty();
  const std::int64_t first_step = record.events.empty() ? 0 : record.events.front().step;
  for (const ShardEvent& event : record.events) {
    const bool computes = event.what == What::Forward || event.what == What::Backward;
    if (event.what == What::Wait || (computes && in_units != (event.part >= 0))) continue;
    if (event.part > 32766)
      throw UsageError(text("a timeline of ", event.part + 1, " units is too large to draw"));
    const schedule::Action action = action_of(event, first_step);
    own.stages = std::max(own.stages, action.stage + 1);
    own.micro_batches = std::max(own.micro_batches, action.micro_batch + 1);
    own.events.push_back(
        {.rank = ranks.rank(), .action = action, .begin = event.begin, .end = event.end});
  }
  return pipeline::gather_timeline(ranks, std::move(own), since_epoch(record.begin),
                                   [] { return since_epoch(std::chrono::steady_clock::now()); });
}

}  // namespace trestle
