#include "trestle/pipeline/execute/step_record.h"

#include <algorithm>

namespace trestle::pipeline {

schedule::Timeline StepRecord::timeline(const schedule::Schedule& table) const {
  schedule::Timeline result;
  result.title = "measured";
  result.stages = table.stages;
  result.micro_batches = table.micro_batches;
  result.rank_count = table.rank_count();
  result.rank_of_stage = table.rank_of_stage;
  result.routes = table.routes;
  for (int rank = 0; rank < static_cast<int>(ranks.size()); ++rank) {
    const RankRecord& record = ranks[rank];
    Bytes peak = record.before;
    if (!record.actions.empty())
      result.memory.push_back({.rank = rank, .time = 0, .bytes = record.before});
    for (const ActionRecord& done : record.actions) {
      const double from = done.begin.seconds() - begin;
      const double to = done.end.seconds() - begin;
      result.events.push_back({.rank = rank, .action = done.action, .begin = from, .end = to});
      result.memory.push_back({.rank = rank, .time = from, .bytes = done.peak});
      result.memory.push_back({.rank = rank, .time = to, .bytes = done.after});
      peak = std::max({peak, done.peak, done.after});
      for (const LoggedMessage& message : done.messages)
        result.tensor_messages.push_back({.rank = rank,
                                          .kind = message.kind,
                                          .bytes = message.bytes,
                                          .begin = message.begin - begin,
                                          .wait = message.wait - begin,
                                          .end = message.end - begin});
    }
    result.peak_bytes.push_back(peak);
    result.whole_layers.insert(result.whole_layers.end(), record.whole_layers.begin(),
                               record.whole_layers.end());
  }
  return result;
}

}  // namespace trestle::pipeline
