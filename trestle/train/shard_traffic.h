#pragma once

#include <string>
#include <vector>

#include "trestle/recipe/recipe.h"
#include "trestle/simulate/network.h"
#include "trestle/train/sharding_plan.h"

// What [mesh] moves between hosts, on paper. Inside of the trainer. Not installed.
namespace trestle::train {

// A layer with parameters.
struct TrafficLayer {
  std::string name;
  std::vector<Bytes> parameters = {};  // those that are trained
  Bytes frozen = 0;                    // of the other ones, which level Parameters gathers too
  double forward = 0;                  // its share of the stage's forward
  double backward = 0;                 // the same of its backward

  Bytes trained() const;
};

// The data-parallel communication of one stage whose layers these are, for Costs::network.
// `host_of_replica`: the host of the rank that holds the stage in each pipeline, in the order of
// replicas. `within_host`: of the messages between ranks of `shard`, if these are on one host. No
// traffic, with one host, if all ranks are on one host: add_communication() has the durations then.
simulate::StageTraffic stage_traffic(const recipe::Recipe::Mesh& mesh,
                                     const std::vector<TrafficLayer>& layers,
                                     const std::vector<int>& host_of_replica,
                                     const MessageCost& within_host);

}  // namespace trestle::train
