#include "trestle/schedule/table_error.h"

#include <utility>

#include "trestle/base/text.h"

namespace trestle::schedule {

TableError::TableError(const Schedule& schedule, const Fault& fault)
    : TableError(schedule, fault, text(fault.rule, "\n", format_grid(schedule, fault.cell))) {}

TableError::TableError(const Schedule& schedule, const Fault& fault, std::string description)
    : UsageError(text("schedule '", schedule.name, "': ", description), {.hint = fault.hint}),
      description_(std::move(description)),
      cell_(fault.cell) {}

}  // namespace trestle::schedule
