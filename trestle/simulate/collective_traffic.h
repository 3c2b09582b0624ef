#pragma once

#include <cstdint>
#include <vector>

#include "trestle/simulate/network.h"

namespace trestle::simulate {

// The part of a tensor that each of `ranks` ranks sends in a reduce-scatter or an all-gather, and
// twice in an all-reduce: (ranks - 1) / ranks, of rings as of direct exchanges.
inline double share_in_ring(std::int64_t ranks) {
  return static_cast<double>(ranks - 1) / static_cast<double>(ranks);
}

enum class CollectiveKind { AllGather, ReduceScatter, AllReduce };

// The bytes that one collective moves through the ports of hosts. `groups` holds, for each group of
// ranks that runs it at the same time, the host of each of its ranks. `bytes`: of the whole tensor,
// which each rank has before a reduction and after a gather.
//
// In a group of n ranks each rank sends 1/n of the tensor to each other one
// (comm/backends/direct_collectives.cpp); an all-reduce sends the sums likewise. A rank so sends
// (n - 1) / n of the bytes, or twice that, as ring algorithms do, and what goes to ranks of its own
// host does not pass the port. The result's `bytes` are those of the host with the most. Its
// `latencies` count the request for the first message, the message, and with an all-reduce the sum.
Collective traffic_of(CollectiveKind kind, double bytes,
                      const std::vector<std::vector<int>>& groups);

// Several collectives at the same place in the order of a stage's, as one: a reduction over shards,
// then one over replicas.
Collective operator+(const Collective& first, const Collective& next);

}  // namespace trestle::simulate
