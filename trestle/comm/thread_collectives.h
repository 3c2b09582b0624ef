#pragma once

#include <vector>

#include "trestle/comm/request.h"

namespace trestle::comm {

// Carries out a collective over all ranks' requests, on the calling thread, in the order of ranks: the
// sum of rank 0's and rank 1's, then rank 2's, whoever came last. Inputs and outputs may lie over
// each other, also those of different ranks.
void run_collective(std::vector<Request>& requests);

bool share_memory(const at::Tensor& a, const at::Tensor& b);

// sum = sum op more, element by element.
void reduce_into(at::Tensor& sum, const at::Tensor& more, Reduce op);

}  // namespace trestle::comm
