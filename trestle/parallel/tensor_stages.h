#pragma once

#include "trestle/gradient_norm/slice_norm.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/tensor_parallel/tensor_ranks.h"

// Joins a pipeline with tensor ranks, which do not include each other. Not installed.
namespace trestle::parallel {

// For a pipeline whose layers were made for these ranks.
TensorOptions tensor_options(const tensor_parallel::TensorRanks& ranks);

// Compares the tensor ranks' parameters. Throws UsageError on all of them, with the first
// difference, and where no parameter of the model is a slice. Returns the sliced parameters of this
// rank's stages. All ranks of the mesh call it.
gradient_norm::SlicedParameters agree_on_slices(const Pipeline& pipeline,
                                                const tensor_parallel::TensorRanks& ranks);

}  // namespace trestle::parallel
