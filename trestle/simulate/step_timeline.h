#pragma once

#include <cstddef>
#include <vector>

#include "trestle/schedule/timeline.h"

// Parts that both simulators of a step share (simulate.cpp, over_hosts.cpp). Not installed.
namespace trestle::simulate {

// The timeline of each rank's events, which are in order of begin, and of its receives. It has no
// memory yet.
schedule::Timeline timeline_of(const schedule::Schedule& schedule,
                               std::vector<std::vector<schedule::Event>> events,
                               std::vector<std::vector<schedule::Event>> receives);

// Throws UsageError with the grid: the rank waits for ever before its action number `next`.
[[noreturn]] void throw_stuck(const schedule::Schedule& schedule, std::size_t rank,
                              std::size_t next);

}  // namespace trestle::simulate
