#pragma once

#include "trestle/schedule/schedule.h"
#include "trestle/schedule/timeline.h"

namespace trestle::schedule {

// Adds the update of the weights to a lowered table. Each rank's row gets one NORM, which adds the
// gradients of its stages to the norm of all ranks' gradients and is named after the rank's first
// stage, and one STEP for each stage. A STEP waits for that norm: the stage's gradients are clipped by
// it, or the step is skipped on all ranks where the norm is not finite. PyTorch's tables have neither.
//
//     rank 0   0F0 0SEND_F0 0RECV_B0 0B0 0NORM 0STEP
//     rank 1   1RECV_F0 1F0 1B0 1SEND_B0 1NORM 1STEP
Schedule add_optimizer_steps(Schedule lowered);

// The part of validate() that checks NORM and STEP, for a table that is valid otherwise. Throws
// UsageError unless
// - all ranks with stages have a NORM, or none has;
// - a rank's NORM stands behind everything that the rank computes, sends, receives and reduces, since
//   it waits for all ranks;
// - a STEP stands behind its rank's NORM or, without one, behind everything that is computed and
//   reduced of its stage;
// - each stands at most once.
void check_optimizer_steps(const Schedule& schedule);

// Seconds of a timeline in which NORM and STEP alone run on any rank: what the update adds to the
// step. 0 without them.
double optimizer_seconds(const Timeline& timeline);

}  // namespace trestle::schedule
