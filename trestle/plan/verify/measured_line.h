#pragma once

#include <string_view>

#include "trestle/plan/verify/verify_plans.h"

namespace trestle::plan {

// Reads the line with "event": "measured" in the output of `trestle train --measure N --json`. A
// launcher may have put a prefix without a brace before the object: "[0] {...}", "0: {...}".
// Throws FormatError for output without such a line, with several (processes that were to be the
// ranks of one run have run alone), or with a line that trestle cannot have written.
MeasuredRun measured_run_of(std::string_view output);

}  // namespace trestle::plan
