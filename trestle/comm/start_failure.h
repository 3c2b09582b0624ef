#pragma once

#include "trestle/base/error.h"
#include "trestle/launch/rank_environment.h"

namespace trestle::comm {

// Tells the ranks that wait in init(), or begin to within three seconds, that this rank will not
// come: their init() throws UsageError if `error` is one, RankError otherwise, with its text.
// init() calls it for its own errors; a program calls it for an error before init(). Does nothing
// for one rank. Takes at most three seconds.
void report_start_failure(const launch::RankEnvironment& environment, const Error& error);

}  // namespace trestle::comm
