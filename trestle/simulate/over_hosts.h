#pragma once

#include "trestle/schedule/timeline.h"
#include "trestle/simulate/costs.h"

namespace trestle::simulate {

// simulate() with Costs::network, in the order of time, since what crosses a link delays what comes
// after it. The arguments have been checked. Not installed.
schedule::Timeline simulate_over_hosts(const schedule::Schedule& schedule, const Costs& costs);

}  // namespace trestle::simulate
