#pragma once

#include "trestle/schedule/schedule.h"

namespace trestle::schedule {

struct Cores {
  int all = 1;        // of the machine, for all ranks together
  int each_rank = 1;  // intra-op threads that a rank's actions have anyway
};

// Writes Action::threads of a lowered table: where ranks are idle (the bubble), those that work get
// their cores. How long every action takes is assumed as in unit_times(), so the table, and with it
// every bit of a step, is the same on each run, whatever a profile measured. An action gets what it
// can have from its beginning to its end, never less than the rank's own, and nothing where other
// ranks' actions begin meanwhile. Ranks take part that have a compute action at all.
//
// GPipe with two stages, two micro-batches, on two cores, one a rank:
//
//     rank 0   0F0@2 0F1   . . 0B1 0B0@2
//     rank 1   .     1F0 1F1@2 1B1@2 1B0
Schedule lend_cores(Schedule lowered, const Cores& cores);

}  // namespace trestle::schedule
