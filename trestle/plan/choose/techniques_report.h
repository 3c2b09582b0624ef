#pragma once

#include <string>
#include <vector>

#include "trestle/plan/choose/techniques.h"
#include "trestle/plan/search/plan_report.h"

namespace trestle::plan {

// The rows as a table: step, samples or tokens per second, peak of the fullest device, what is free
// or too large, and in which situation one takes it; then the plan of `report`, the best of all
// strategies. Lines of at most `columns` columns, except where a word is longer.
std::string techniques_report(const std::vector<TechniqueRow>& rows, const ReportOf& report,
                              int columns);

// One object: "techniques", each with "fits", "step_seconds" and "peak_bytes", and "best", which is
// plan_json() of the report.
std::string techniques_json(const std::vector<TechniqueRow>& rows, const ReportOf& report);

}  // namespace trestle::plan
