#pragma once

#include <cstdint>

#include "trestle/base/units.h"

namespace trestle {

// Counters of the communication of a sharded model since it was made, on this rank.
struct ShardReport {
  int groups = 0;          // buckets, or flat groups at level Parameters
  std::int64_t steps = 0;  // backwards that were reduced
  // Reductions of groups' gradients, over the ranks that shard them (at level None over all ranks).
  std::int64_t reductions = 0;
  Bytes reduced = 0;                // bytes of gradients that this rank put into them
  Bytes reduced_over_replicas = 0;  // bytes of this rank's shards, summed over replicas
  std::int64_t gathers = 0;         // all-gathers of groups' parameters
  std::int64_t gathers_from_neighbours =
      0;                               // of them, among the ranks of reshard_after_forward = k
  Bytes gathered = 0;                  // bytes of parameters that they gathered here
  Bytes gathered_from_neighbours = 0;  // of these, from the ranks of reshard_after_forward = k
  std::int64_t unused_checks = 0;      // reductions that found parameters without a gradient
  // At the end of the last backward, for reductions that the backward did not hide.
  double waited_seconds = 0;
};

// How far a training has come, as far as random numbers depend on it. A checkpoint holds it
// (save/save.h).
struct ShardProgress {
  std::int64_t steps = 0;     // backwards that were reduced
  std::int64_t forwards = 0;  // training forwards since the last of them
};

}  // namespace trestle
