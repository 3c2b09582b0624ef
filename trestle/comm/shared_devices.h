#pragma once

#include <c10/core/Device.h>

#include <string_view>
#include <vector>

#include "trestle/comm/group.h"

namespace trestle::comm {

// Throws UsageError on all ranks of the group if two of them are threads of one process that use
// one device, except the CPU: each would wait for the other in the device's one backward thread.
// `which` describes the ranks in the message, such as "of the pipeline". Waits for all ranks.
void refuse_shared_devices(const Group& group, const std::vector<at::Device>& own,
                           std::string_view which);

}  // namespace trestle::comm
