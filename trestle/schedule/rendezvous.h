#pragma once

#include "trestle/schedule/schedule.h"

namespace trestle::schedule {

// Walks a lowered table in which every SEND has exactly one RECV, with transfers that block both
// ranks until the two meet (MPI_Ssend, NCCL without buffers): the hardest transport there is.
// Throws UsageError where the ranks wait for each other for ever; the message says who waits for
// whom and marks one cell of the circle.
void check_rendezvous(const Schedule& schedule);

}  // namespace trestle::schedule
