#pragma once

#include <chrono>

#include "trestle/comm/world.h"

namespace trestle::comm {

// Joins the other ranks of `environment`, and returns this process's World.
World process_world(const launch::RankEnvironment& environment, bool with_nccl,
                    std::chrono::milliseconds deadline);

}  // namespace trestle::comm
