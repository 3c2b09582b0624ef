#pragma once

#include <vector>

#include "trestle/schedule/schedule.h"

namespace trestle::schedule {

// Maps a GPipe table with one stage on each rank onto ranks that may have several stages. Each rank
// runs the forwards of its stages from the front of the model to its end, then the backwards in
// reverse. Used for numbers of micro-batches that a table or a schedule does not cover.
Schedule place(const Schedule& gpipe, const std::vector<int>& rank_of_stage, int ranks);

}  // namespace trestle::schedule
