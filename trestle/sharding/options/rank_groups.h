#pragma once

#include <string>

#include "trestle/comm/group.h"
#include "trestle/mesh/device_mesh.h"
#include "trestle/sharding/options/options.h"

namespace trestle::sharding {

// The groups of ranks that a sharded model uses. Several models may use the same groups, one after
// the other.
struct RankGroups {
  comm::Group all = {};      // replicate x shard: the ranks that hold the model together
  comm::Group shard = {};    // that shard it; not valid() at level None
  comm::Group gathers = {};  // the ranks of `shard`, with connections for the all-gathers alone
  // The ranks that keep parameters between forward and backward (reshard_after_forward = k); else
  // not valid().
  comm::Group neighbours = {};
  comm::Group replicate = {};  // that hold the same shard; not valid() without replicas
  std::string mesh = {};       // its text, for messages
};

// The groups of a mesh, along the dimensions that the options name. All ranks of the mesh's world
// call it. Throws UsageError for a mesh without the dimension that the level needs.
RankGroups rank_groups(const DeviceMesh& mesh, const ShardOptions& options);

// The same ranks with connections of their own, for a model that runs at the same time as another
// one, in another thread: only the collectives of one thread have an order. All ranks of the mesh's
// world call it.
RankGroups separate_rank_groups(const DeviceMesh& mesh, const ShardOptions& options);

}  // namespace trestle::sharding
