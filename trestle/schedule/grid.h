#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "trestle/schedule/schedule.h"

// Formats a schedule for an error message.
namespace trestle::schedule {

// One cell of the table: ranks[rank][index].
struct GridCell {
  int rank = 0;
  std::size_t index = 0;
};

// One row for each rank with its compute actions in order, without a time axis (view has pictures
// with one). The marked cell, which may also be a send or a receive, is between '>' and '<'. A long
// table is cut to the part around the mark. No newline follows the last row.
//
//     rank 0 |  0F0   0F1   0B0   0B1
//     rank 1 |  1F0  >1B0<  1F1   1B1
std::string format_grid(const Schedule& schedule, std::optional<GridCell> mark = std::nullopt);

// The same where the mark is a word that is no action. It stands at the end of the mark's row.
std::string format_grid_with(const Schedule& schedule, int rank, const std::string& word);

}  // namespace trestle::schedule
