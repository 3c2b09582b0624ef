#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trestle/comm/group.h"
#include "trestle/sharding/options/options.h"
#include "trestle/sharding/options/rank_groups.h"

// Checks and arithmetic of ShardOptions::reproducible, besides the order of sums
// (reduce/micro_batch_sums.h).
namespace trestle::sharding {

// Throws UsageError where these ranks or this device cannot compute reproducibly.
void check_reproducible(const ShardOptions& options, const RankGroups& ranks);
void check_reproducible_device(at::Device device);

// Throws StateError where this thread computes with another number of threads.
void check_threads(const Reproducible& wanted);

// The same values at an aligned address. Some kernels compute differently at an address inside a
// cache line.
at::Tensor aligned(const at::Tensor& tensor);

// The p-norm of the gradients of `parameters` on all ranks of the group (on this rank alone, if
// that is not valid()). The order of a sum depends on what each rank holds. So each |g|^p becomes
// an integer in units of 2^-61 of the largest one: sums of integers do not depend on the order.
// Costs one reduction more than usual. Infinite or NaN where a gradient is.
double exact_norm(const std::vector<at::Tensor>& parameters, const comm::Group& group, double p);

}  // namespace trestle::sharding
