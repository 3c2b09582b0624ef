#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

// Dropout with the same mask under every plan.
//
//   x = trestle::nn::keyed_dropout(x, 0.1, is_training());  // in the forward of a layer
namespace trestle::nn {

// A tensor that is a slice of a larger one: the indices [begin, begin + x.size(dimension)) of a
// dimension above 0 that has `whole` indices.
struct DropoutSlice {
  std::int64_t dimension = 1;
  std::int64_t begin = 0;
  std::int64_t whole = 0;
};

// x times 0 with probability p, and times 1 / (1 - p) otherwise; x itself without `training` or for
// p = 0. `x` is [N, ...] of a floating type, and row n belongs to example n of the micro-batch.
//
// Within a layer of a trestle::Pipeline or a Sharded model, a number of the mask is keyed by the
// seed, the step, the layer, how often the layer has called keyed_dropout() before, the example's
// number in the whole step, and the element's number within its row. Micro-batches, replicas,
// schedules and recomputation do not change it. With a `slice` the mask is that slice of the larger
// tensor's mask, which is not drawn. A Sharded model numbers its examples as
// if all ranks had batches of one size. For the backward it keeps one byte for each number.
// Elsewhere the mask comes from torch's default generator, as that of torch::dropout().
//
// Throws UsageError for a p outside of 0 to 1, and for a tensor without dimensions, and for
// a slice that x cannot be.
at::Tensor keyed_dropout(const at::Tensor& x, double p, bool training,
                         const std::optional<DropoutSlice>& slice = {});

}  // namespace trestle::nn
