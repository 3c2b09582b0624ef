#pragma once

#include <vector>

#include "trestle/comm/group.h"
#include "trestle/device/named_tensors.h"

// Ranks that begin with one and the same model.
namespace trestle::sharding {

// Throws UsageError on all ranks where they do not have the same parameters and buffers, naming the first that differs and
// how two ranks have it. All ranks of the group call it.
void check_same_model(const comm::Group& group, const NamedTensors& parameters,
                      const NamedTensors& buffers);

// All ranks get rank 0's values, a few large messages for all tensors, without autograd noticing.
void broadcast(const comm::Group& group, const std::vector<at::Tensor>& tensors);

}  // namespace trestle::sharding
