#pragma once

#include <cstdint>

#include "trestle/plan/search/planned_model.h"
#include "trestle/schedule/timeline.h"

namespace trestle::plan {

// The duration of a step by trestle's simulator, and how the device of the slowest stage spends it.
// All are seconds.
struct StepPrediction {
  double seconds = 0;
  double compute = 0;    // of the device that computes most
  double exposed = 0;    // it waits for messages of its tensor and data group
  double optimizer = 0;  // its update, and the step's fixed time
  double bubble = 0;     // the rest: it waits for other stages
  int slowest_stage = 0;
};

// The table of the strategy, lowered, with its optimizer's steps.
schedule::Schedule table_of(const Strategy& strategy, std::int64_t micro_batches);

// Interleaved 1f1b is declared: the simulator's 1f1b with the time in which the pipeline fills and
// drains divided by the number of chunks.
StepPrediction predict_step(const Strategy& strategy, std::int64_t micro_batches,
                            const StrategyCosts& costs);
// The same with a table that table_of() returned, for strategies that share it.
StepPrediction predict_step(const schedule::Schedule& table, int chunks,
                            const StrategyCosts& costs);

// No schedule of these costs is shorter. A rank cannot begin before the stages ahead of its first
// one have run one forward, nor can the step end before they have run one backward, or one I, after
// its last; each rank runs all its micro-batches; shared cores run the passes of all stages; and
// the update comes after that. Interleaving divides the time on earlier stages by the number of
// chunks.
double least_step_seconds(std::int64_t micro_batches, int chunks, const StrategyCosts& costs);

}  // namespace trestle::plan
