#pragma once

#include "trestle/schedule/schedule.h"

namespace trestle::schedule {

// A lowered table of one of several pipelines that take parts of one mini-batch: before its first use a stage's parameters
// are put together (UNSHARD), and at the end of its rank's row its gradients are reduced over the pipelines (REDUCE_GRAD)
// and the parameters let go (RESHARD), in the order in which the stages' last backwards end. That a reduction begins
// while the last backward is under way is the runtime's business: the action is where it has to be done.
//
//     rank 0   0UNSHARD 0F0 0F1 ... 0B1 0B0 0REDUCE_GRAD 0RESHARD
Schedule add_reductions(Schedule lowered);

}  // namespace trestle::schedule
