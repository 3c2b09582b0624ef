#pragma once

#include "trestle/schedule/timeline.h"
#include "trestle/simulate/costs.h"

namespace trestle::simulate {

// Fills `memory` and `peak_bytes` of a simulated timeline from its events. A rank holds
//
// - persistent: of its stages, all the time;
// - saved: from the begin of F (of R where there is one) to the end of B, or of W where B is split;
// - kept_for_recompute: from the begin of F to the begin of R, where there is an R;
// - transient: from the begin to the end of F, R, B, I or W; of the stage's first B or W
//   transient_first_backward, with which the gradients are born;
// - gradients: from the end of that first B or W to the end of the step;
// - of a whole-batch loss: loss_transient (where it is more than that B's transient) during the
//   stage's first B, and loss_kept from its begin to the end of the step;
// - a route's bytes: on the receiver from the arrival to the begin of the action that takes them,
//   which from then on counts them as its own; on the sender from the end of the action that made
//   them until the SEND; within one rank from the one to the other.
//   With Transport::Pull on the sender, from the end of the action that made them to the begin of
//   the one that takes them, but for what the sender's graph keeps anyway.
void fill_memory(schedule::Timeline* timeline, const Costs& costs);

}  // namespace trestle::simulate
