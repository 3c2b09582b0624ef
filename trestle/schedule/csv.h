#pragma once

#include <string>
#include <string_view>

#include "trestle/schedule/schedule.h"

// Schedules as CSV in PyTorch's layout. Row r is rank r, and each cell is an action (see to_string
// in action.h); cells may be empty. torch.distributed.pipelining reads tables of compute actions
// that trestle writes, and trestle reads those of PyTorch.
//
//     0F0,0F1,0B0,0B1
//     1F0,1B0,1F1,1B1
//
// A lowered table has further lines after its rows, one for each route:
//
//     #route,FROM,TO,main|skip,NAME
namespace trestle::schedule {

// Rows end in "\n". Cells have no padding.
std::string to_csv(const Schedule& schedule);

// The inverse. `name` becomes Schedule::name. The numbers of stages and micro-batches are the
// largest in the table plus one, and a stage belongs to the rank that has most of its actions, the
// first of several. Call validate() on tables from outside. A table with transfers but no route
// lines (PyTorch's lowered form) gets a main lane between all neighbours. Fields may be quoted
// ("..." with "" for a quote). Lines may end in "\r\n". A byte order mark and blank lines are
// skipped; a rank without actions is a line of "". Throws FormatError with name, line and column,
// and with the table up to the malformed cell.
Schedule parse_csv(std::string_view text, std::string_view name = "csv");

// The same with validate(), for a table that a user names: every mistake in it is a UsageError with
// name, line and column of the cell. TableUse::Pipeline: with validate_for_pipelines().
enum class TableUse { Any, Pipeline };
Schedule read_csv(std::string_view text, std::string_view name = "csv",
                  TableUse use = TableUse::Any);

}  // namespace trestle::schedule
