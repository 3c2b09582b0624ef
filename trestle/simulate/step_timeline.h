#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <vector>

#include "trestle/schedule/routes.h"
#include "trestle/schedule/timeline.h"

// Parts that both simulators of a step share (simulate.cpp, over_hosts.cpp). Not installed.
namespace trestle::simulate {

// The time when a transfer's message arrived; nothing if it did not.
using ArrivalOf = std::function<std::optional<double>(const schedule::Transfer& transfer)>;

// The timeline of each rank's events without its receives, which are in order of begin. It adds the
// receives at their arrivals, and no memory. Throws UsageError if the message of a receive did not
// arrive.
schedule::Timeline timeline_of(const schedule::Schedule& schedule,
                               std::vector<std::vector<schedule::Event>> events,
                               const ArrivalOf& arrival_of);

// Throws UsageError with the grid: the rank waits for ever before its action number `next`.
[[noreturn]] void throw_stuck(const schedule::Schedule& schedule, std::size_t rank,
                              std::size_t next);

}  // namespace trestle::simulate
