#pragma once

#include "trestle/schedule/schedule.h"
#include "trestle/schedule/timeline.h"

namespace trestle::schedule {

// Adds optimizer steps to a lowered table. At its end each rank gets one NORM, which contributes
// its stages' gradients to the norm over all ranks and carries its first stage's number, and a STEP
// for each of its stages. A STEP waits for that norm and clips by it; if it is not finite, all
// ranks skip the step. PyTorch's tables have no such actions.
//
//     rank 0   0F0 0SEND_F0 0RECV_B0 0B0 0NORM 0STEP
//     rank 1   1RECV_F0 1F0 1B0 1SEND_B0 1NORM 1STEP
Schedule add_optimizer_steps(Schedule lowered);

// Checks the NORM and STEP actions of an otherwise valid table; validate() calls it. Throws
// UsageError unless
// - all ranks that have stages have a NORM, or none has;
// - a rank's NORM comes after all that the rank computes, sends, receives and reduces, because no
//   rank continues before all ranks have reached it;
// - a STEP comes after its rank's NORM, or without a NORM after its stage's last computation and
//   reduction;
// - no action occurs twice.
void check_optimizer_steps(const Schedule& schedule);

// Seconds of a timeline in which NORM and STEP alone run on any rank: what the update adds to the
// step. 0 without them.
double optimizer_seconds(const Timeline& timeline);

}  // namespace trestle::schedule
