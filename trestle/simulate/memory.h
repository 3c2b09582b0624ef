#pragma once

#include "trestle/schedule/timeline.h"
#include "trestle/simulate/costs.h"

namespace trestle::simulate {

// Fills `memory`, `peak_bytes`, `device_of_stage` and `device_peak_bytes` of a simulated timeline
// from its events. A stage holds on its device:
//
// - persistent: all the time;
// - saved: from the begin of F (of R where there is one, with recompute_excess) to the end of B, or
//   of I; kept_for_weights from then to the end of W;
// - kept_for_recompute: from the begin of F to the begin of R, where there is an R;
// - transient: from the begin to the end of F, R, B, I or W; during the stage's first B or W it is
//   that of the first, because gradients are allocated then;
// - gradients: from the end of that first B or W to the end of the stage's STEP, or of the step.
//   With gradients_at_start they are held all the time, and no B counts as the first;
// - for a whole-batch loss: output_kept from each F to the end of the step, without what the graph
//   keeps; loss_transient during the stage's first B, where it exceeds that B's transient; and
//   loss_kept from that B's begin to the end of the step;
// - a route's bytes (on the sender with activation_excess): on the sender from the end of the
//   producing action to the SEND; on the receiver from the arrival to the begin of the consuming
//   action, which counts them itself from then on. Within one rank: from the producer's end to the
//   consumer's begin.
//   With TransferMode::Pull: on the sender, from the end of the producing action for as long as the
//   receiver may not have taken them, without what the sender's graph keeps.
// With TransferMode::Prefetch, between ranks: on the sender likewise, and on the receiver from the
//   moment it may have fetched them (prefetched_messages.h).
// How long a message waits for its receiver depends on timing that is not in the costs. Peaks are
// therefore upper bounds: between two devices a pulled message counts until the sender begins an
// action that depends on the message having been taken (the action uses something that the receiver
// produced then or later), or until the end of the step. Within a device, and with
// Concurrency::OneThread, it counts until it is taken.
//
// A rank's memory is that of its stages, on all their devices. A device's peak is the most that all
// its stages hold together at any time. Bytes that one rank frees and another allocates at the same
// instant count twice, because their order is unknown.
void fill_memory(schedule::Timeline* timeline, const Costs& costs);

}  // namespace trestle::simulate
