#pragma once

#include <cstddef>
#include <string>

#include "trestle/plan/search/plan_report.h"

// The result of a search as one self-contained page: a table of plans that sorts and filters, each
// plan's bytes and timeline, why it lost, what does not fit, and a map of time against memory with
// the Pareto front. It loads nothing, so it opens from a file, and it reads well on a telephone, in
// the dark, on paper and with a keyboard.
//
//   const plan::PlanRequest request{.devices = 8, .batch = 64, .map = plan::MapRequest()};
//   const plan::PlanResult result = plan::find_plans(model, machine, request);
//   write_file("report.html", plan::plan_page({model, machine, request, result}));
namespace trestle::plan {

// Limits that keep a page of thousands of strategies below a megabyte. The page says which plans
// are cut short, and how to draw one of them.
struct PlanPageOptions {
  std::size_t timelines = 40;              // the first plans with a timeline
  std::size_t cells_of_timeline = 1200;    // beyond that its begin and its end
  std::size_t cells = 14'000;              // of all timelines
  std::size_t cells_to_simulate = 60'000;  // a table with more has no timeline
  std::size_t stages = 1200;               // whose bytes are listed, of all plans
};

// Without PlanRequest::map the page has the best plans alone.
std::string plan_page(const ReportOf& report, const PlanPageOptions& options = {});

}  // namespace trestle::plan
