#pragma once

#include <string>
#include <vector>

#include "trestle/plan/choose/techniques.h"
#include "trestle/plan/search/plan_report.h"

namespace trestle::plan {

struct TechniquesOf {
  const PlannedModel& model;
  const Machine& machine;
  const PlanRequest& request;             // with all devices
  const std::vector<TechniqueRow>& rows;  // compare_techniques() of these
  const BestOfAll& best;                  // best_of_all() of these
};

// The rows as a table: step, samples or tokens per second, peak of the fullest device, the price if
// that is the goal, what is free or too large, and in which situation one takes it; then the best
// of all with its number of devices. Lines of at most `columns` columns, except where a word is
// longer.
std::string techniques_report(const TechniquesOf& report, int columns);

// One object: "techniques", each with "fits", "step_seconds" and "peak_bytes"; the names of
// "fastest_alone" and, by the goal, "best_alone"; and "best", plan_json() of the best of all.
std::string techniques_json(const TechniquesOf& report);

}  // namespace trestle::plan
