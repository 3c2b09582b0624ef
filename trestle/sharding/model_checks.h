#pragma once

#include <vector>

#include "trestle/comm/group.h"
#include "trestle/device/named_tensors.h"
#include "trestle/sharding/options.h"

// What ranks must have alike, and ranks that begin with one and the same model.
namespace trestle::sharding {

// Throws UsageError on all ranks where they do not have the same parameters and buffers, naming the first that differs and
// how two ranks have it. All ranks of the group call it.
void check_same_model(const comm::Group& group, const NamedTensors& parameters,
                      const NamedTensors& buffers);

// The same for what is asked of the engine. Where a rank's device is may differ.
void check_same_options(const comm::Group& group, const ShardOptions& options);

// Throws UsageError for a parameter or buffer that is sparse, that has no memory any more because a Sharded that is gone
// divided it, or that another one trains; for a parameter that overlaps itself; and above level None, where parameters
// are moved, for one that shares its memory with another tensor of the model.
void check_can_be_sharded(const NamedTensors& parameters, const NamedTensors& buffers,
                          ShardLevel level);

// A number for a dtype on a device.
int kind_of(const at::Tensor& tensor);

// All ranks get those of rank `from` of the group, a few large messages for all tensors, without autograd noticing.
void broadcast(const comm::Group& group, const std::vector<at::Tensor>& tensors, int from = 0);

}  // namespace trestle::sharding
