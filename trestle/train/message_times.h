#pragma once

#include <c10/core/Device.h>

#include "trestle/comm/group.h"
#include "trestle/train/sharding_plan.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// Times all-reduces of one number and of up to `bytes` between the ranks of a group. All of them
// call it, each on its device; it takes some milliseconds.
MessageCost time_messages(const comm::Group& group, at::Device device, Bytes bytes);

}  // namespace trestle::train
