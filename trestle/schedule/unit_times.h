#pragma once

#include <vector>

#include "trestle/schedule/schedule.h"

namespace trestle::schedule {

struct TimeSpan {
  double begin = 0;
  double end = 0;
};

// The begin and end of each action, spans[rank][index], of a table without communication, if F, I,
// W and R take 1, B takes 2, and other actions and transfers take no time. Every action waits for
// the producers on its routes, or for the neighbouring stage if `routes` is empty. All stages and
// micro-batches must be in range. Throws UsageError with the grid if the table gets stuck.
std::vector<std::vector<TimeSpan>> unit_times(const Schedule& schedule);

}  // namespace trestle::schedule
