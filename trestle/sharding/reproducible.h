#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "trestle/comm/group.h"
#include "trestle/sharding/options.h"
#include "trestle/sharding/rank_groups.h"

// What ShardOptions::reproducible asks for, besides the order of sums.
namespace trestle::sharding {

// Throws UsageError where these ranks, or what they hold, cannot keep the promise.
void check_reproducible(const ShardOptions& options, const RankGroups& ranks);
void check_reproducible_device(at::Device device);

// Throws StateError where this thread computes with another number of threads.
void check_threads(const Reproducible& wanted);

// The same values at an address that no kernel treats in a way of its own: some take what begins in
// the middle of a cache line otherwise.
at::Tensor aligned(const at::Tensor& tensor);

// The p-norm of the gradients of `parameters` on all ranks of the group (of this one alone, where
// it is not valid). What one rank adds up first depends on what it has: so each |g|^p is made a
// whole number of 2^-61 of the largest, and whole numbers have one sum. One reduction more than
// usual. Infinite, or not a number, where a gradient is.
double exact_norm(const std::vector<at::Tensor>& parameters, const comm::Group& group, double p);

}  // namespace trestle::sharding
