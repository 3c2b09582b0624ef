#pragma once

#include "trestle/schedule/schedule.h"

namespace trestle::schedule {

// A GPipe table, one rank a stage, laid over the ranks of `other`, where several stages may share
// one: first the forwards of a rank's stages from the front of the model to its end, then the
// backwards the other way. For the micro-batch counts that a user's own table does not cover.
Schedule place(const Schedule& gpipe, const Schedule& other);

}  // namespace trestle::schedule
