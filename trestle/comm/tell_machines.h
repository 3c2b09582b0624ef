#pragma once

#include "trestle/launch/launcher.h"

namespace trestle::comm {

// LaunchOptions::tell_machines for ranks that meet in rank 0's store: tells the ranks that are
// there. A failure ends the world in which the rank that has ended took part. An end also ends the
// wait of ranks that have not met yet, and they note it to their own launcher, which then starts
// them no more. Returns once these ranks know it, or cannot come any more. Takes at most 3 s: a
// store may be closing, and the next one opening; a machine may be about to start.
void tell_machines(const launch::NewsForMachines& news);

}  // namespace trestle::comm
