#pragma once

#include "trestle/schedule/timeline.h"
#include "trestle/simulate/costs.h"

namespace trestle::simulate {

// Adds the messages of Costs::messages to the actions of a simulated timeline. They are spread
// evenly over what an action computes, in their order. Not installed.
void place_tensor_messages(schedule::Timeline* timeline, const Costs& costs);

}  // namespace trestle::simulate
