#pragma once

#include <string>

#include "trestle/comm/group.h"
#include "trestle/mesh/device_mesh.h"
#include "trestle/sharding/options.h"

namespace trestle::sharding {

// The groups of ranks that a sharded model uses. Several models may use the same, one after the other.
struct RankGroups {
  comm::Group all = {};      // that have the model together: replicate x shard
  comm::Group shard = {};    // that divide it; not valid at level None
  comm::Group gathers = {};  // the same ranks, with connections of its own for gathering parameters
  comm::Group few =
      {};  // that keep parameters between forward and backward (Reshard); or not valid
  comm::Group replicate =
      {};                 // that have the same piece of it; not valid where there is one replica
  std::string mesh = {};  // in words
};

// Of a mesh's dimensions, as the options name them. All ranks of the mesh's world call it. Throws UsageError for a mesh
// without the dimension that the level needs.
RankGroups rank_groups(const DeviceMesh& mesh, const ShardOptions& options);

// The same ranks with connections of their own, for a model that other threads use at the same time as another one: the
// collectives of a group keep their order, and those of two threads have none. All ranks of the mesh's world call it.
RankGroups more_rank_groups(const DeviceMesh& mesh, const ShardOptions& options);

}  // namespace trestle::sharding
