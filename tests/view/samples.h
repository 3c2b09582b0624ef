#pragma once

#include <string>

#include "trestle/schedule/lower.h"
#include "trestle/schedule/timeline.h"

// Timelines for several tests.
namespace trestle::view::samples {

// A schedule by name, simulated with unit costs. The title says "simulated".
schedule::Timeline unit(const std::string& name, int stages, int micro_batches,
                        const schedule::LowerOptions& options = {});

// GPipe, 2 stages, 4 micro-batches, two skips from stage 0 to 1, recompute except_last, unit costs.
schedule::Timeline gpipe_with_skips();

// The same with milliseconds and mebibytes instead of units, similar to a U-Net cut in two.
schedule::Timeline unet();

// The same over two hosts, whose link takes longer than the stages compute.
schedule::Timeline unet_over_hosts();

// One stage over tensor ranks: a sum in each F and B, half hidden in B.
schedule::Timeline over_tensor_ranks();

// A timeline as if measured: `of` with uneven times, titled "measured".
schedule::Timeline measured(schedule::Timeline of);

// A hand-made timeline of four ranks and one micro-batch, without the simulator.
schedule::Timeline by_hand();

// Compares with tests/golden/view/<name>. With TRESTLE_UPDATE_GOLDEN=1 in the environment it writes
// the file instead.
void expect_golden(const std::string& name, const std::string& actual);

}  // namespace trestle::view::samples
