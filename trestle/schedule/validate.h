#pragma once

#include "trestle/schedule/schedule.h"

namespace trestle::schedule {

// Checks that a table can run on any transport. Throws UsageError whose message shows the grid with
// the offending cell marked. Checked: every stage on exactly one rank and in range; each
// micro-batch of each stage has exactly one F, and one B or one I and one W; F before R before B or
// I before W; no backward before the next stage's; every SEND has its RECV and the other way round;
// and, with sends that block until they are received, no deadlock.
void validate(const Schedule& schedule);

// True if the first backward of each rank comes after its last forward: a loss over the whole batch
// is possible.
bool all_forwards_first(const Schedule& schedule);

}  // namespace trestle::schedule
