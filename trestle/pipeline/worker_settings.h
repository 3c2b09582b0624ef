#pragma once

#include <functional>

#include "trestle/device/threads.h"
#include "trestle/device/vector_math.h"

namespace trestle::pipeline {

// What a thread of a pipeline sets up first (comm/job_thread.h): `threads` intra-op threads for
// every operator that it runs.
inline std::function<void()> worker_settings(int threads) {
  return [threads] {
    settle_vector_math();
    set_worker_threads(threads);
  };
}

}  // namespace trestle::pipeline
