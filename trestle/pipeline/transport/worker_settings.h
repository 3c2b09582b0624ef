#pragma once

#include <functional>

#include "trestle/device/threads.h"
#include "trestle/device/vector_math.h"

namespace trestle::pipeline {

// The set-up of a pipeline's threads (comm/job_thread.h): `threads` intra-op threads for every
// operator that they run.
inline std::function<void()> worker_settings(int threads) {
  return [threads] {
    warm_up_vector_math();
    set_worker_threads(threads);
  };
}

}  // namespace trestle::pipeline
