#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "trestle/comm/spawn.h"
#include "trestle/comm/world.h"

namespace trestle::testing {

using RankFunction = std::function<void(World&)>;

// Runs `function` on ranks that are threads of this process. A failure of one is the caller's
// exception; expectations of GoogleTest may be made on all.
void run_ranks(int ranks, const RankFunction& function,
               std::chrono::milliseconds deadline = std::chrono::seconds(20));

}  // namespace trestle::testing
