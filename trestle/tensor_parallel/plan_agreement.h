#pragma once

#include <string>

#include "trestle/tensor_parallel/tensor_ranks.h"

// The comparison of what tensor ranks must share: a model, its split, the batch of a step. Not
// installed.
namespace trestle::tensor_parallel {

// Throws UsageError on all tensor ranks, with the first line that differs, unless `own` is the same
// text on all of them. A line is one fact. `what` completes "the tensor ranks ...". Does nothing
// where no other rank exists. All tensor ranks call it.
void refuse_different_plans(const TensorRanks& ranks, const std::string& own, const char* what);

}  // namespace trestle::tensor_parallel
