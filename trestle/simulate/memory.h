#pragma once

#include "trestle/schedule/timeline.h"
#include "trestle/simulate/costs.h"

namespace trestle::simulate {

// Fills `memory`, `peak_bytes`, `device_of_stage` and `device_peak_bytes` of a simulated timeline
// from its events. A stage holds, on its device,
//
// - persistent: all the time;
// - saved: from the begin of F (of R where there is one, with recompute_excess) to the end of B, or
//   of W where B is split;
// - kept_for_recompute: from the begin of F to the begin of R, where there is an R;
// - transient: from the begin to the end of F, R, B, I or W; of the stage's first B or W
//   transient_first_backward, with which the gradients are born;
// - gradients: from the end of that first B or W to the end of the stage's STEP, or of the step; all the time where a step
//   begins with them (gradients_at_start), and then no B is a first one;
// - of a whole-batch loss: output_kept from each F to the end of the step, but for what the graph
//   keeps anyway; loss_transient (where it is more than that B's transient) during the stage's first
//   B, and loss_kept from its begin to the end of the step;
// - a route's bytes (on the sender with what they exceed): on the receiver from the arrival to the
//   begin of the action that takes them, which from then on counts them as its own; on the sender
//   from the end of the action that made them until the SEND; within one rank from the one to the
//   other.
//   With Transport::Pull on the sender, from the end of the action that made them for as long as
//   they may be waiting there, but for what the sender's graph keeps anyway.
//   With Transport::Ahead between ranks on both: on the sender likewise, and on the receiver from when
//   it may have fetched them (ahead.h).
//
// How long a message waits for its receiver depends on timing that no profile knows. So peaks are
// the most there can be: between two devices a pulled message counts until the sender begins
// something that cannot have begun before the message was taken (it uses what the receiver made
// then or later), or to the end of the step. Within a device, and with Control::OneThread, it counts
// until it is taken.
//
// A rank's memory is that of its stages, on all their devices. A device's peak is the most that all
// its stages hold together at any time; what one rank gives up and another takes at the same
// instant counts twice, since nobody knows which comes first.
void fill_memory(schedule::Timeline* timeline, const Costs& costs);

}  // namespace trestle::simulate
