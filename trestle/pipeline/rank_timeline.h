#pragma once

#include <functional>

#include "trestle/comm/group.h"
#include "trestle/schedule/timeline.h"

namespace trestle::pipeline {

// Puts the rows that each rank recorded of one step into one timeline, on all ranks. `begin`: when the
// own rows' time 0 was, on the clock `now`, in seconds. The clocks of different machines have nothing to do with
// each other: what a rank's shows when rank 0's shows 0 is measured by messages there and back, of
// which the fastest counts (Cristian 1989); it is right to half of that one's time.
schedule::Timeline gather_timeline(const comm::Group& group, schedule::Timeline own, double begin,
                                   const std::function<double()>& now);

}  // namespace trestle::pipeline
