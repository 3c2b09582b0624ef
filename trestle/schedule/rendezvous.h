#pragma once

#include "trestle/schedule/schedule.h"

namespace trestle::schedule {

// Walks a lowered table in which every SEND has exactly one RECV, with transfers that block both
// ranks until they meet (MPI_Ssend, NCCL without buffers). This is the strictest transport. Throws
// UsageError for a deadlock; the message lists the cycle of waiting ranks and marks one of its
// cells.
void check_rendezvous(const Schedule& schedule);

}  // namespace trestle::schedule
