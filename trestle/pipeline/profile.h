#pragma once

#include <vector>

#include "trestle/nn/loss.h"
#include "trestle/pipeline/partitioned_model.h"
#include "trestle/simulate/costs.h"

// What the stages cost, found out by running them.
namespace trestle::pipeline {

// Runs one micro-batch through each stage on its own device and worker, forward and backward: first
// one stage after the other for the bytes, then all stages at the same time for the times, since
// that is how they will run. Parameters, their grad() and the buffers are afterwards as they were.
// `target` belongs to the micro-batch. A whole-batch loss is taken on `micro_batches` copies of it.
simulate::Costs profile_stages(PartitionedModel& model, const nn::Values& micro_batch,
                               const at::Tensor& target, const nn::Loss& loss, int micro_batches);

}  // namespace trestle::pipeline
