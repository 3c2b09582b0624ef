#pragma once

#include <chrono>

#include "trestle/comm/world.h"

namespace trestle::comm {

enum class GpuBackend { None, Nccl };

// Throws UsageError if this process cannot communicate as the environment variables demand.
void check_network();

// Joins the other ranks of `environment`, and returns this process's World.
World process_world(const launch::RankEnvironment& environment, GpuBackend gpu_backend,
                    std::chrono::milliseconds deadline);

}  // namespace trestle::comm
