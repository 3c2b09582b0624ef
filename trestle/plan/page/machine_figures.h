#pragma once

#include <string>
#include <vector>

#include "trestle/plan/search/plan_report.h"

// The figures behind a result, each with its origin and its source. Not installed.
namespace trestle::plan {

struct PageFigure {
  std::string name = {};
  std::string words = {};
  std::string is = {};  // "measured", "simulated" or "assumed"
  std::string from = {};
};

// Those of the machine that have a source, and those of the result.
std::vector<PageFigure> machine_figures(const ReportOf& report);

}  // namespace trestle::plan
