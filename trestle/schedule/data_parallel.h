#pragma once

#include "trestle/schedule/schedule.h"

namespace trestle::schedule {

// Adds the actions of data parallelism to a lowered table, for one of several pipelines that share
// a mini-batch. UNSHARD all-gathers a stage's parameters before its first use. At the end of its
// rank's row REDUCE_GRAD reduces the stage's gradients over the pipelines and RESHARD frees its
// parameters, in the order in which the stages' last backwards end. The action marks where a
// reduction must be complete; the runtime starts it during the last backward.
//
//     rank 0   0UNSHARD 0F0 0F1 ... 0B1 0B0 0REDUCE_GRAD 0RESHARD
Schedule add_reductions(Schedule lowered);

}  // namespace trestle::schedule
