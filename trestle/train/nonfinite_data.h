#pragma once

#include <string>

#include "trestle/data/loader.h"
#include "trestle/parallel/stage_replicas.h"
#include "trestle/pipeline/pipeline.h"
#include "trestle/train/run_ranks.h"

// The cause of a loss that is not finite. Not installed.
namespace trestle::train {

// "the inputs of the data have values that are infinite or NaN, in the examples 5, 7"; "" where the
// inputs and targets of the batch are finite. All ranks call it and get the same text.
std::string nonfinite_data(const data::Batch& batch, const RunRanks& ranks);

// The hint for nonfinite_data().
inline constexpr const char* hint_for_nonfinite_data =
    "Correct them; `trestle data check` lists every such example.";

// Throws Error for a validation loss that is not finite, after this batch of the validation. The
// message names the cause: the data, the weights, or neither. All ranks call it. `replicas` is null
// for one pipeline.
void refuse_nonfinite_validation(double loss, const data::Batch& batch, const RunRanks& ranks,
                                 const Pipeline& pipeline, parallel::StageReplicas* replicas);

}  // namespace trestle::train
