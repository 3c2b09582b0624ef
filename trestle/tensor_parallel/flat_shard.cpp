#include "trestle/tensor_parallel/flat_shard.h"

#include <functional>
#include <numeric>

#include "trestle/tensor_parallel/collectives.h"

namespace trestle::tensor_parallel {

namespace {

// Images in channels_last are dense too, and stay so.
at::Tensor dense(const at::Tensor& x) {
  return x.is_non_overlapping_and_dense() ? x.detach() : x.detach().contiguous();
}

}  // namespace

DenseLayout::DenseLayout(const at::Tensor& x)
    : sizes(x.sizes().vec()), strides(dense(x).strides().vec()) {}

at::Tensor flat_shard(const TensorRanks& ranks, const at::Tensor& x) {
  const at::Tensor all = dense(x);
  return own_shard(ranks, all.as_strided({all.numel()}, {1}), 0);
}

at::Tensor gather_flat(const TensorRanks& ranks, const at::Tensor& shard,
                       const DenseLayout& layout) {
  const std::int64_t numbers = std::accumulate(layout.sizes.begin(), layout.sizes.end(),
                                               std::int64_t{1}, std::multiplies<>());
  return gather(ranks, shard, 0, numbers).get().as_strided(layout.sizes, layout.strides);
}

}  // namespace trestle::tensor_parallel
