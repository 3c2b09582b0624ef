#pragma once

#include "trestle/schedule/schedule.h"

namespace trestle::schedule {

// Checks that a table can run on any transport. Throws UsageError whose message shows the grid with
// the offending cell marked. Checked: every stage on exactly one rank and in range; each
// micro-batch of each stage has exactly one F, and one B or one I and one W; F before R before B or
// I before W; no backward before the next stage's; every SEND has its RECV and the other way round;
// and no deadlock, if every rank follows its list and a SEND blocks until it is received where its
// RECV stands (of a table without transfers: until what it reads is made). Where NORM and STEP may stand:
// optimizer_steps.h.
//
// A transport that blocks less is safe with what passes: sends that wait for nobody, and receives
// that are put off until just before the action that uses what they bring, as the local runtime and
// the simulator have both. A transport whose sends do wait must take receives where the table has
// them. Costs about the same for every action of the table.
void validate(const Schedule& schedule);

// True if the first backward of each rank comes after its last forward: a loss over the whole batch
// is possible.
bool all_forwards_first(const Schedule& schedule);

}  // namespace trestle::schedule
