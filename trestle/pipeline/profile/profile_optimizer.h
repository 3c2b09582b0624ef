#pragma once

#include "trestle/pipeline/execute/partitioned_model.h"
#include "trestle/pipeline/execute/stage_optimizer_options.h"
#include "trestle/simulate/costs.h"

namespace trestle::pipeline {

// Times NORM and STEP of one stage, which its rank's worker calls, and writes them into its cost.
// The optimizer is made for copies of the stage's parameters with gradients of zero, and freed
// afterwards. Both times stay 0 without an optimizer, and where the device has no room for the
// copies.
void measure_optimizer(const PartitionedModel& model, const Stage& stage,
                       const StageOptimizerOptions& options, simulate::StageCost& cost);

}  // namespace trestle::pipeline
