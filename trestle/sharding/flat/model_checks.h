#pragma once

#include "trestle/comm/group.h"
#include "trestle/device/named_tensors.h"
#include "trestle/sharding/options/shard_level.h"

namespace trestle::sharding {

// Throws UsageError on all ranks of the group where their parameters and buffers differ, with the
// first difference. All ranks call it.
void check_same_model(const comm::Group& group, const NamedTensors& parameters,
                      const NamedTensors& buffers);

// Throws UsageError for a tensor that is sparse, that has no memory because a destroyed Sharded
// sharded it, or that another Sharded trains; for a parameter that overlaps itself; and above level
// None, where parameters move, for one that shares its memory with another tensor of the model.
void check_can_be_sharded(const NamedTensors& parameters, const NamedTensors& buffers,
                          ShardLevel level);

}  // namespace trestle::sharding
