#pragma once

#include <vector>

#include "trestle/comm/group.h"
#include "trestle/device/named_tensors.h"

namespace trestle::sharding {

// A number for a tensor's dtype and device.
int kind_of(const at::Tensor& tensor);

// Copies the tensors of rank `from` of the group to all its ranks, in a few large messages.
// Autograd does not record it.
void broadcast_tensors(const comm::Group& group, const std::vector<at::Tensor>& tensors,
                       int from = 0);

}  // namespace trestle::sharding
