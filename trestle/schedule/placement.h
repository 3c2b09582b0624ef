#pragma once

#include "trestle/schedule/schedule.h"

namespace trestle::schedule {

// Maps a GPipe table with one stage on each rank onto the ranks of `other`, which may have several
// stages. Each rank runs the forwards of its stages from the front of the model to its end, then
// the backwards in reverse. Used for micro-batch counts that a user's own table does not cover.
Schedule place(const Schedule& gpipe, const Schedule& other);

}  // namespace trestle::schedule
