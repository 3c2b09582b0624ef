#include "trestle/schedule/lend_cores.h"

#include <algorithm>
#include <limits>
#include <map>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/schedule/unit_times.h"

namespace trestle::schedule {
namespace {

// The number of busy ranks, by the times at which it changes.
std::map<double, int> busy_ranks(const std::vector<std::vector<TimeSpan>>& times) {
  std::map<double, int> changes;
  for (const auto& spans : times) {
    for (const TimeSpan& span : spans) {
      if (span.end <= span.begin) continue;
      ++changes[span.begin];
      --changes[span.end];
    }
  }
  int busy = 0;
  for (auto& [time, change] : changes) change = busy += change;
  return changes;
}

int most_busy(const std::map<double, int>& busy, const TimeSpan& span) {
  int most = 1;
  for (auto at = busy.find(span.begin); at != busy.end() && at->first < span.end; ++at)
    most = std::max(most, at->second);
  return most;
}

}  // namespace

Schedule lend_cores(Schedule lowered, const Cores& cores) {
  constexpr int most = std::numeric_limits<decltype(Action::threads)>::max();
  if (cores.each_rank < 1 || cores.all < 1 || cores.all > most) {
    throw UsageError(text("cannot lend ", cores.all, " cores, ", cores.each_rank, " to a rank"),
                     {.hint = text("Give 1 to ", most, ".")});
  }
  const auto times = unit_times(lowered);
  const auto busy = busy_ranks(times);
  for (std::size_t rank = 0; rank < times.size(); ++rank) {
    for (std::size_t index = 0; index < times[rank].size(); ++index) {
      const TimeSpan& span = times[rank][index];
      Action& action = lowered.ranks[rank][index];
      if (span.end <= span.begin || !is_compute(action.kind)) continue;
      const int share = cores.all / most_busy(busy, span);
      action.threads = share > cores.each_rank ? static_cast<std::uint8_t>(share) : 0;
    }
  }
  return lowered;
}

}  // namespace trestle::schedule
