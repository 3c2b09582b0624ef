#pragma once

#include <vector>

#include "trestle/comm/request.h"

namespace trestle::comm {

// Carries out a collective over all ranks' requests, on the calling thread, in the order of ranks and
// of pairs.h, whoever came last. Inputs and outputs may lie over each other, also those of different ranks.
void run_collective(std::vector<Request>& requests);

bool share_memory(const at::Tensor& a, const at::Tensor& b);

// out = a op b, element by element; `out` may be one of them.
void reduce_to(at::Tensor out, const at::Tensor& a, const at::Tensor& b, Reduce op);
void reduce_into(const at::Tensor& sum, const at::Tensor& more, Reduce op);

}  // namespace trestle::comm
