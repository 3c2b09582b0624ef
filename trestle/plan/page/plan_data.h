#pragma once

#include <string>

#include "trestle/plan/page/plan_page.h"

// The data that the scripts of a page draw, as JSON. Not installed.
namespace trestle::plan {

std::string plan_page_data(const ReportOf& report, const PlanPageOptions& options);

}  // namespace trestle::plan
