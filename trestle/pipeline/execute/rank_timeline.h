#pragma once

#include <functional>

#include "trestle/comm/group.h"
#include "trestle/schedule/timeline.h"

namespace trestle::pipeline {

// Merges what each rank recorded of one step into one timeline, on all ranks. `begin`: the time 0
// of the own timeline, on the clock `now`, in seconds. The ranks' clocks are independent: each rank
// measures the offset of its clock to rank 0's by messages there and back, of which the fastest
// counts (Cristian 1989). The offset is exact to half of that message's time.
schedule::Timeline gather_timeline(const comm::Group& group, schedule::Timeline own, double begin,
                                   const std::function<double()>& now);

}  // namespace trestle::pipeline
