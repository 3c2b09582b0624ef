#pragma once

#include <string>

#include "trestle/gradient_norm/slice_norm.h"
#include "trestle/nn/value.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/tensor_parallel/tensor_ranks.h"

// Joins a pipeline with tensor ranks, which do not include each other. Not installed.
namespace trestle::parallel {

// For a pipeline whose layers were made for these ranks.
TensorOptions tensor_options(const tensor_parallel::TensorRanks& ranks);

// Compares the tensor ranks' parameters, and their pipelines: layers, seeds, options and table.
// Throws UsageError on all of them: with the first difference; where their slices of a parameter
// are not all of it, each index once; and where no parameter of the model is a slice. Returns the
// sliced parameters of this rank's stages. `stages` are the ranks of the pipeline; not valid for
// one rank. All ranks of the mesh call it.
gradient_norm::SlicedParameters agree_on_slices(Pipeline& pipeline, const comm::Group& stages,
                                                const tensor_parallel::TensorRanks& ranks);

// Compares a call of a pipeline on all tensor ranks, with the bytes of its batch: ranks with other
// batches would compute wrong numbers without an error. Throws UsageError on all of them, with the
// first difference, and fails the world. `call` describes it, a line for each fact.
void refuse_different_calls(const tensor_parallel::TensorRanks& ranks, const std::string& call,
                            const nn::Values& batch);

}  // namespace trestle::parallel
