#pragma once

#include "trestle/schedule/action.h"
#include "trestle/schedule/schedule.h"

namespace trestle::schedule {

// Checks that a table can run on any transport. Throws UsageError with the grid and the offending
// cell marked. The rules:
//
// - every stage is in range and on exactly one rank;
// - each stage has, for each micro-batch, exactly one F, and one B or one I and one W;
// - F comes before R, and R before B or I, and I before W;
// - no backward comes before the next stage's;
// - every SEND has its RECV, and every RECV its SEND;
// - there is no deadlock if every rank follows its list and a SEND blocks until its RECV (in a
// table
//   without transfers: until its inputs are produced);
// - NORM and STEP follow the rules in optimizer_steps.h.
//
// Such a table is also safe on transports that block less: with sends that do not wait, and with
// receives that are delayed until just before the action that uses them, as in the local runtime
// and the simulator. A transport whose sends wait must receive where the table has the RECV. The
// cost is about constant for each action.
void validate(const Schedule& schedule);

// F, B, I, W, and the overlapped pair: the actions of a table that a pipeline takes. The pipeline
// adds sends, receives, recomputation, reductions, norms and steps.
bool is_for_pipelines(Kind kind);

// The same for a table that a pipeline is to run: throws UsageError also for any other action.
void validate_for_pipelines(const Schedule& schedule);

// True if on each rank all forwards come before the first backward, so that a whole-batch loss is
// possible.
bool all_forwards_first(const Schedule& schedule);

// Whether the table has I and W in place of some B.
bool splits_backward(const Schedule& schedule);

}  // namespace trestle::schedule
