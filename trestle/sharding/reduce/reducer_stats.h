#pragma once

#include <cstdint>

#include "trestle/base/units.h"

namespace trestle::sharding {

// Counters of a GradientReducer. They continue when buckets are rebuilt.
struct ReducerStats {
  std::int64_t steps = 0;           // backward passes whose gradients were reduced
  std::int64_t backwards = 0;       // backward passes that began
  std::int64_t reductions = 0;      // of flat groups
  Bytes reduced = 0;                // bytes of gradients that this rank put into them
  Bytes reduced_over_replicas = 0;  // bytes of shards that this rank summed over replicas
  std::int64_t unused_checks = 0;   // reductions that found which parameters got no gradient
  double waited_seconds = 0;        // at the end of the last reduced backward pass
};

}  // namespace trestle::sharding
