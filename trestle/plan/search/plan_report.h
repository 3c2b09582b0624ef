#pragma once

#include <cstdint>
#include <string>

#include "trestle/plan/search/search.h"
#include "trestle/schedule/timeline.h"

// The result of a search as text and as JSON. Every time is simulated from a machine file's
// figures, and every number of bytes is a formula's.
namespace trestle::plan {

struct ReportOf {
  const PlannedModel& model;
  const Machine& machine;
  const PlanRequest& request;
  const PlanResult& result;
};

// Lines of at most `columns` columns, except where a word is longer.
std::string plan_report(const ReportOf& report, int columns);

// The bytes of each stage of a plan, stages with equal ones together, and how its step was
// computed.
std::string explained(const ReportOf& report, const Plan& plan, int columns);

// "it takes 126 ms longer per step: it waits for messages 126 ms longer": why `plan` is behind
// `best` by the goal of the request.
std::string why_lost(const ReportOf& report, const Plan& plan, const Plan& best);

// A price with three digits.
std::string money_text(double money);

// The plan's step on trestle's simulator, for a picture.
schedule::Timeline timeline_of_plan(const ReportOf& report, const Plan& plan);

// One object: "predicted_step_seconds" and "strategy" of the best plan, "plans", "not_legal",
// "too_large", "counts" and the sources of the figures. If one strategy was requested and does not
// fit, the first two are its own, and "fits" is false.
std::string plan_json(const ReportOf& report);

// A larger spread of predictions counts as this one: a step takes at most ten times as long.
inline constexpr double largest_spread = 0.9;

// The ranges that a prediction spans by the machine's spread.
double least_seconds(double predicted, const Machine& machine);
double most_seconds(double predicted, const Machine& machine);

}  // namespace trestle::plan
