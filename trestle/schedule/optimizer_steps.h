#pragma once

#include "trestle/schedule/schedule.h"

namespace trestle::schedule {

// A lowered table whose step also changes the weights: behind all else each rank has one NORM, which adds its stages' gradients
// to the norm of all ranks', named after its first stage, and a STEP for each of its stages, which waits for that norm: a
// stage's gradients are clipped by it, or left out where it is not finite, on all ranks alike. Not in PyTorch's tables.
//
//     rank 0   0F0 0SEND_F0 0RECV_B0 0B0 0NORM 0STEP
//     rank 1   1RECV_F0 1F0 1B0 1SEND_B0 1NORM 1STEP
Schedule add_optimizer_steps(Schedule lowered);

// The part of validate() that is about them, for a table that is right otherwise. Throws UsageError unless
// - all ranks that have stages have a NORM, or none has;
// - a rank's NORM stands behind all that it computes, sends, receives and reduces: no rank goes on from there before all have
//   come;
// - a STEP stands behind its rank's NORM, or where there is none behind all that is computed and reduced of its stage;
// - none stands twice.
void check_optimizer_steps(const Schedule& schedule);

}  // namespace trestle::schedule
