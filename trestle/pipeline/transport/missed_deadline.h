#pragma once

#include <chrono>
#include <string>

#include "trestle/schedule/routes.h"
#include "trestle/schedule/schedule.h"

namespace trestle::pipeline {

// The message of a DeadlineError:
// "rank 0 waited 20 ms for the gradient of skip 's' of micro-batch 2 from rank 1, which <status>".
std::string describe_missed_deadline(const schedule::Route& route,
                                     const schedule::Transfer& transfer, int rank, int from,
                                     std::chrono::milliseconds deadline, const std::string& status);

}  // namespace trestle::pipeline
