#pragma once

#include <vector>

#include "trestle/schedule/schedule.h"

namespace trestle::schedule {

struct Span {
  double begin = 0;
  double end = 0;
};

// When each compute action of a table without communication would run if F, I, W and R took 1, B
// took 2, transfers nothing: spans[rank][index]. Other actions take no time. Every action waits for
// the producers on its routes (for the neighbouring stage where `routes` is empty). All stages and
// micro-batches must be in range. Throws UsageError, showing the grid, where the table gets stuck.
std::vector<std::vector<Span>> unit_times(const Schedule& schedule);

}  // namespace trestle::schedule
