#pragma once

#include <string_view>

#include "trestle/plan/verify/verify_plans.h"

namespace trestle::plan {

// Reads the line with "event": "measured" in the output of `trestle train --measure N --json`.
// Throws FormatError for output without such a line, or with a line that trestle cannot have
// written.
MeasuredRun measured_run_of(std::string_view output);

}  // namespace trestle::plan
