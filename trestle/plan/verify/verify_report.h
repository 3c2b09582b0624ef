#pragma once

#include <string>

#include "trestle/plan/machine/machine.h"
#include "trestle/plan/verify/verify_plans.h"

// The plans that were run as text and as JSON. Simulated and measured figures have columns of their
// own.
namespace trestle::plan {

// Lines of at most `columns` columns, except where a word is longer. `machine` has the range of a
// prediction.
std::string verify_report(const Verification& verification, const Machine& machine, int columns);

// One object: "plans", "pick_is_best", "regret", "mean_time_error", "mean_peak_error", "in_range",
// "widest_spread" and "finished".
std::string verify_json(const Verification& verification, const Machine& machine);

}  // namespace trestle::plan
