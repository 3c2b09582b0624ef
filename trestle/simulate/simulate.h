#pragma once

#include "trestle/schedule/timeline.h"
#include "trestle/simulate/costs.h"

namespace trestle::simulate {

// Simulates a lowered schedule with the given costs, event by event. A SEND departs when its rank
// reaches it and does not occupy the rank, which reproduces the published bubbles. It arrives after
// its route's time. A RECV does not block its rank: the action that uses the tensors waits for
// them. In the timeline a SEND's event is at its departure and a RECV's at its arrival; neither
// takes time. NORM takes the sum of the norm times of its rank's stages, and a STEP waits for the
// NORMs of all ranks. With Concurrency::OneThread the ranks take turns in the order of the
// runtime: rank 0 as far as it gets, then rank 1, and so on, round after round. With
// Costs::shared_cores actions take longer while more of them run than there are cores. memory.h has
// the rules for memory and peaks. The cost is about constant for each action. Throws UsageError
// with the grid if the schedule gets stuck, and UsageError if the costs do not cover its stages or
// routes or are invalid times.
//
//   const auto table = schedule::generate("1f1b", {.stages = 4, .micro_batches = 8});
//   const auto timeline = simulate(schedule::lower(table, {}), unit_costs(4));
//   makespan(timeline);  // 33
schedule::Timeline simulate(const schedule::Schedule& schedule, const Costs& costs);

// Every stage costs the same: F = 1, I = 1, W = 1 (B = 2), recompute = 1, transfers free.
Costs unit_costs(int stages);

}  // namespace trestle::simulate
