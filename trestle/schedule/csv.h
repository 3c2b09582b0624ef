#pragma once

#include <string>
#include <string_view>

#include "trestle/schedule/schedule.h"

// Schedules as CSV in PyTorch's layout: row r is rank r, each cell one action (see to_string in
// action.h), empty cells allowed. A table of compute actions written here loads in
// torch.distributed.pipelining, and theirs load here.
//
//     0F0,0F1,0B0,0B1
//     1F0,1B0,1F1,1B1
//
// What PyTorch's layout cannot hold follows the rows of a lowered table, one line for each route:
//
//     #route,FROM,TO,main|skip,NAME
namespace trestle::schedule {

// Rows end in "\n"; the cells of a row are joined without padding.
std::string to_csv(const Schedule& schedule);

// The inverse. `name` becomes Schedule::name. The numbers of stages and micro-batches are the
// largest that occur plus one, and a stage belongs to the first rank that acts for it: call
// validate() on what comes from outside. A table with SEND_F or SEND_B but no route lines
// (PyTorch's lowered form) gets a main lane between all neighbours. Fields may be quoted ("..."
// with "" for a quote); "\r\n" is accepted, a byte order mark and blank lines are passed over (a rank
// without actions is a line of ""). Throws FormatError with name, line and column.
Schedule parse_csv(std::string_view text, std::string_view name = "csv");

}  // namespace trestle::schedule
