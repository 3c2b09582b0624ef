#pragma once

#include <cstdint>
#include <vector>

#include "trestle/nn/loss.h"
#include "trestle/pipeline/partitioned_model.h"
#include "trestle/pipeline/pipeline_options.h"
#include "trestle/pipeline/stage_exchange.h"
#include "trestle/simulate/costs.h"

// What the stages cost, found out by running them.
namespace trestle::pipeline {

// The mini-batch: micro-batches of these sizes, each with its target last.
struct ProfiledMiniBatch {
  std::vector<nn::Values> pieces;
  std::vector<std::int64_t> sizes;
};

// Runs one micro-batch through each stage on its own device and worker, forward and backward: first
// one stage after the other for the bytes, then all stages at the same time for the times, since
// that is how they will run. Parameters, their grad() and the buffers are afterwards as they were.
// The first piece is measured, and the bytes of the last where it is smaller. A whole-batch loss is
// taken on as many copies of the first as there are pieces. With `lent_threads` > 0 each stage is
// timed once more, alone and with so many intra-op threads. NORM and STEP are timed with `optimizer`.
//
// Over ranks all call it, inside exchange.run(); each measures its own stages, and all return the same.
simulate::Costs profile_stages(PartitionedModel& model, const ProfiledMiniBatch& batch,
                               const nn::Loss& loss, StageExchange& exchange,
                               const StageOptimizerOptions& optimizer = {}, int lent_threads = 0);

}  // namespace trestle::pipeline
