#pragma once

#include <cstdint>

#include "trestle/nn/value.h"
#include "trestle/pipeline/execute/partitioned_model.h"

// Which of the model's inputs a rank passes to a call of the pipeline.
namespace trestle::pipeline {

// One bit for each of the model's first 64 inputs: 1 = a tensor, 0 = None. `batch`: the inputs.
std::uint64_t input_bits(const nn::Graph& graph, const nn::Values& batch);

// Throws UsageError if all inputs on the first rank are None: a target alone would give the number
// of samples, and the first layer would fail with a message that does not name the cause.
void check_first_rank_inputs(const nn::Graph& graph, const nn::Values& batch, int rank);

// Throws UsageError if an input that a stage of this rank uses is None here and a tensor on the
// first rank: a layer would take it for an omitted optional argument. `firsts`: the first rank's
// bits.
void check_stage_inputs(const PartitionedModel& model, const nn::Values& batch,
                        std::uint64_t firsts, int rank, int first_rank);

}  // namespace trestle::pipeline
