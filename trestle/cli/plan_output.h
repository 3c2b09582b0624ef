#pragma once

#include <cstdint>
#include <string>

#include "trestle/base/overwrite.h"
#include "trestle/plan/search/plan_report.h"

// The output of `trestle plan`, of a recipe and of a GPT by its sizes.
namespace trestle::cli {

struct PlanOutput {
  std::int64_t explain = 0;  // a plan's number from 1; 0 = none
  std::string svg = {};      // the timeline of that plan, or of the best one; empty: none
  std::string html = {};     // a page of all plans; empty: none
  Overwrite overwrite = Overwrite::Refuse;
  bool json = false;
};

// Throws UsageError for a picture or a page that could not be written.
void check_plan_output(const PlanOutput& output);

// Throws UsageError for a plan's number that the result does not have.
void print_plan(const plan::ReportOf& report, const PlanOutput& output);

}  // namespace trestle::cli
