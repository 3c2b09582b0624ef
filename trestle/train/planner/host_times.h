#pragma once

#include "trestle/train/layer_costs.h"

// Inside of the trainer. Not installed.
namespace trestle::train {

// Measures what messages between ranks of this machine and the recipe's optimizer take, in well
// under a second: `ranks` ranks that are threads add up small and large tensors on the CPU, and the
// optimizer steps 4 MiB of parameters. One rank alone has no messages.
HostTimes measure_host_times(const recipe::Recipe& recipe, int ranks);

}  // namespace trestle::train
