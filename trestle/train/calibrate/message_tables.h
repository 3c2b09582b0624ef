#pragma once

#include <c10/core/Device.h>

#include <string>
#include <vector>

#include "trestle/comm/group.h"
#include "trestle/plan/machine/calibration.h"
#include "trestle/train/calibrate/device_costs.h"

// The exchanges of ranks. Inside of the trainer. Not installed.
namespace trestle::train {

// Times one kind of exchange for each size; all ranks of the group call it with equal arguments. A
// round takes as long as its slowest rank. Exchange::Send needs a group of two: half of a message
// and its answer.
plan::MessageTable time_messages_by_size(const comm::Group& group, plan::Exchange kind,
                                         at::Device device, const CalibrationDepth& depth);

}  // namespace trestle::train
