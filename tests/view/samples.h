#pragma once

#include <string>

#include "trestle/schedule/lower.h"
#include "trestle/schedule/timeline.h"

// Timelines that several tests draw.
namespace trestle::view::samples {

// A schedule by name, simulated with unit costs; the title says "simulated".
schedule::Timeline unit(const std::string& name, int stages, int micro_batches,
                        const schedule::LowerOptions& options = {});

// GPipe, 2 stages, 4 micro-batches, two skips from stage 0 to 1, recompute except_last, unit costs.
schedule::Timeline gpipe_with_skips();

// The same with milliseconds and mebibytes in place of units, as a U-Net cut in two has.
schedule::Timeline unet();

// A timeline as a machine would have measured it: `of` with uneven times, titled "measured".
schedule::Timeline measured(schedule::Timeline of);

// Four ranks by hand, one micro-batch: no simulator takes part.
schedule::Timeline by_hand();

// Compares with tests/golden/view/<name>; with TRESTLE_UPDATE_GOLDEN=1 in the environment writes it
// instead.
void expect_golden(const std::string& name, const std::string& actual);

}  // namespace trestle::view::samples
