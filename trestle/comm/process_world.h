#pragma once

#include <chrono>

#include "trestle/comm/world.h"

namespace trestle::comm {

// This process as one of several ranks, which it meets first.
World process_world(const launch::RankEnvironment& environment, bool with_nccl,
                    std::chrono::milliseconds deadline);

}  // namespace trestle::comm
