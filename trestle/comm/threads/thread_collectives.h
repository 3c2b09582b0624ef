#pragma once

#include <vector>

#include "trestle/comm/request.h"

namespace trestle::comm {

// Executes a collective over all ranks' requests on the calling thread. The result does not depend
// on which rank calls: reductions follow the order of reduction.h. Inputs and outputs may overlap,
// also those of different ranks.
void run_collective(std::vector<Request>& requests);

}  // namespace trestle::comm
