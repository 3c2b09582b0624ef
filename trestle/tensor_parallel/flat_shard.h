#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "trestle/tensor_parallel/tensor_ranks.h"

// A tensor that is whole and equal on all ranks, of which each rank keeps a shard. Inside of the
// library. Not installed.
namespace trestle::tensor_parallel {

// The places of a tensor's numbers in memory. A tensor whose memory has gaps or overlaps counts as
// contiguous.
struct DenseLayout {
  explicit DenseLayout(const at::Tensor& x);
  std::vector<std::int64_t> sizes, strides;
};

// This rank's nn::even_range() of the numbers of x, in their order in memory: one dimension, in
// memory of its own.
at::Tensor flat_shard(const TensorRanks& ranks, const at::Tensor& x);
// The tensor again, in new memory and with the same bits. Sends one all-gather.
at::Tensor gather_flat(const TensorRanks& ranks, const at::Tensor& shard,
                       const DenseLayout& layout);

}  // namespace trestle::tensor_parallel
