#pragma once

#include "trestle/schedule/timeline.h"
#include "trestle/simulate/costs.h"

namespace trestle::simulate {

// Runs a lowered schedule on paper: an event simulation with the given costs. A SEND leaves when
// its rank comes to it and does not occupy the rank (this reproduces the published bubbles); it
// arrives its route's time later. A RECV never holds its rank up: the action that uses the tensors
// waits for them. In the timeline a SEND's event stands at its departure, a RECV's at its arrival,
// and neither takes time. NORM takes the time of all of its rank's stages' norms, and a STEP waits for the NORMs of
// all ranks. With Control::OneThread the ranks take turns, in the order of the runtime on
// plain CPUs: rank 0 as far as it gets, then rank 1, and so on, round after round. Memory over time
// and the peaks of ranks and devices follow the rules in memory.h. A pure function that costs about
// the same for every action. Throws UsageError, showing the grid, where the schedule gets stuck, and
// where the costs do not cover its stages or routes or are no times.
//
//   const auto table = schedule::generate("1f1b", {.stages = 4, .micro_batches = 8});
//   const auto timeline = simulate(schedule::lower(table, {}), unit_costs(4));
//   makespan(timeline);  // 33
schedule::Timeline simulate(const schedule::Schedule& schedule, const Costs& costs);

// Every stage costs the same: F = 1, I = 1, W = 1 (B = 2), recompute = 1, transfers free.
Costs unit_costs(int stages);

}  // namespace trestle::simulate
