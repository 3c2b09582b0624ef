#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/plan/search/plan_report.h"

// The columns of a page's table of plans. Not installed.
namespace trestle::plan {

// One cell: the words that it shows and the value that it is sorted by, if that is a number.
struct PlanCell {
  std::string words = {};
  double value = 0;
};

// A column has figures of one origin only, so that simulated times never stand among measured ones.
struct PlanColumn {
  enum class Is { Choice, Simulated, Measured, Assumed };
  enum class By { Words, Number };
  // A telephone's row has the strategy's name and the figures of row Always.
  enum class Row { Always, Wide };

  std::string heading;
  std::string help;  // one sentence
  Is is = Is::Choice;
  By by = By::Number;
  Row row = Row::Wide;
  std::function<PlanCell(const ReportOf&, const Plan&)> cell;
};

std::string_view to_string(PlanColumn::Is is);

// The one list of columns. A new choice or figure is one entry of it.
std::vector<PlanColumn> plan_columns(const ReportOf& report);

// Whether the devices of this search have a limit.
bool has_memory_limit(const PlanResult& result);

}  // namespace trestle::plan
