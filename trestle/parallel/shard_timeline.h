#pragma once

#include "trestle/comm/group.h"
#include "trestle/schedule/timeline.h"
#include "trestle/sharding/record/shard_record.h"

namespace trestle {

// The records of all ranks of the group as one timeline, on all ranks, for view/svg.h or
// view/chrome_trace.h. A unit is a stage: F and B are its forward and backward in step 0, 1, ... of
// the record, and UNSHARD all-gathers its parameters. REDUCE_GRAD reduces the gradients of the
// bucket, or flat group, of that number. Without units the whole model is stage 0. A gap is time in
// which the rank is idle. All ranks call it.
//
//   sharded.start_recording();
//   for (int step = 0; step < 3; ++step) sharded.backward(loss(sharded.forward(x)));
//   const auto timeline = trestle::shard_timeline(sharded.stop_recording(), world.group());
//   const auto picture =
//       trestle::view::to_svg({timeline}, {.memory = trestle::view::MemoryCharts::Hide});
//   if (world.rank() == 0) trestle::write_file("step.svg", picture);
schedule::Timeline shard_timeline(const ShardRecord& record, const comm::Group& ranks);

}  // namespace trestle
