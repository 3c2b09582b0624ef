#pragma once

#include <vector>

#include "trestle/base/units.h"
#include "trestle/simulate/link.h"

// The hosts of a step's ranks, and what crosses the links between them.
namespace trestle::simulate {

// One collective of the ranks that hold a stage, of all replicas.
struct Collective {
  double bytes = 0;      // that leave and that enter each of the hosts, for all its ranks together
  double latencies = 0;  // how often it waits for a message from one host to another
  double seconds = 0;    // that it takes beside this, such as messages within a host
};

// A unit of parameters that each F, R and B of a stage gathers for itself, while the unit before
// computes.
struct GatheredUnit {
  Collective gather;
  double forward = 0;   // the unit's share of the stage's forward; all shares add up to 1
  double backward = 0;  // the same of its backward
};

// Gradients that are reduced together, during the stage's last backward.
struct ReducedBucket {
  Collective reduce;
  double ready = 1;  // the share of that backward after which the reduction can begin
};

// The data-parallel communication of one stage. Collectives of one kind run one after the other, in
// the order of these lists.
struct StageTraffic {
  std::vector<int> hosts = {};           // of the ranks that hold the stage
  std::vector<Collective> unshard = {};  // UNSHARD
  // In the order of the forward.
  std::vector<GatheredUnit> units = {};
  std::vector<ReducedBucket> buckets = {};  // REDUCE_GRAD ends after them and after `end`
  Collective end = {};
  int most_in_flight = 0;  // reductions that a backward does not wait for; 0 = all
};

struct Network {
  Link link;  // of each host
  // [replica][stage] the number of the host, from 0, whose rank holds the stage. A pipeline alone
  // is one replica.
  std::vector<std::vector<int>> hosts;
  std::vector<StageTraffic> stages = {};  // for each stage; empty = no data parallelism
  // With TransferMode::Prefetch: the bytes that a message begins with, and how many bytes of its
  // tensors can travel with them. If these need more room than `first_part`, it grows.
  Bytes first_part = 4096;
  Bytes in_first_part = 3584;
};

// Network::in_first_part of ranks on plain CPUs.
inline constexpr Bytes in_first_part_on_cpu = Bytes{255} * 1024;

}  // namespace trestle::simulate
