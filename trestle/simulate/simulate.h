#pragma once

#include "trestle/schedule/timeline.h"
#include "trestle/simulate/costs.h"

namespace trestle::simulate {

// Runs a lowered schedule on paper: an event simulation with the given costs. A send does not
// occupy its rank (this reproduces the published bubbles); a transfer takes its route's time
// between the sender's F (or B) and the receiver's. Returns events, memory over time and the peak
// for each rank. A pure function. Throws UsageError where the schedule would deadlock or the costs
// do not cover its stages.
schedule::Timeline simulate(const schedule::Schedule& schedule, const Costs& costs);

// Every stage costs the same: F = 1, I = 1, W = 1 (B = 2), recompute = 1, transfers free.
Costs unit_costs(int stages);

}  // namespace trestle::simulate
