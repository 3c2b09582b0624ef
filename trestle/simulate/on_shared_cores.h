#pragma once

#include "trestle/schedule/timeline.h"
#include "trestle/simulate/costs.h"

namespace trestle::simulate {

// simulate() with Costs::shared_cores. The cost of an action grows with the logarithm of the number
// of ranks.
schedule::Timeline simulate_on_shared_cores(const schedule::Schedule& schedule, const Costs& costs);

}  // namespace trestle::simulate
