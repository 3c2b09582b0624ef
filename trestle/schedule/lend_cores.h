#pragma once

#include "trestle/schedule/schedule.h"

namespace trestle::schedule {

struct Cores {
  int all = 1;        // of the machine, shared by all ranks
  int each_rank = 1;  // default intra-op threads of a rank
};

// Sets Action::threads of a lowered table: busy ranks get the cores of idle ranks (the bubble).
// Durations are those of unit_times(), so the table does not depend on measurements, and every run
// computes the same bits. An action gets the cores that are free for its whole duration, at least
// its rank's own. Only ranks with a compute action share cores.
//
// GPipe with two stages and two micro-batches on two cores, one for each rank:
//
//     rank 0   0F0@2 0F1   . . 0B1 0B0@2
//     rank 1   .     1F0 1F1@2 1B1@2 1B0
Schedule lend_cores(Schedule lowered, const Cores& cores);

}  // namespace trestle::schedule
