#pragma once

#include <optional>
#include <string>

#include "trestle/base/error.h"
#include "trestle/schedule/grid.h"
#include "trestle/schedule/schedule.h"

// Not installed.
namespace trestle::schedule {

// Describes an error of a table.
struct Fault {
  std::string rule;                   // the broken rule in one sentence
  std::string hint;                   // the remedy
  std::optional<GridCell> cell = {};  // the cell that breaks it
};

// A table that cannot run. The message has the rule, the grid with the cell marked, and the hint.
class TableError : public UsageError {
 public:
  TableError(const Schedule& schedule, const Fault& fault);

  // The rule and the grid, without the schedule's name.
  const std::string& description() const { return description_; }
  const std::optional<GridCell>& cell() const { return cell_; }

 private:
  TableError(const Schedule& schedule, const Fault& fault, std::string description);

  std::string description_;
  std::optional<GridCell> cell_;
};

}  // namespace trestle::schedule
