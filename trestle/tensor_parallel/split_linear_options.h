#pragma once

#include <c10/core/ScalarType.h>

#include <cstdint>
#include <optional>
#include <vector>

#include "trestle/tensor_parallel/linear.h"

namespace trestle::tensor_parallel {

// The options of ColumnLinear and RowLinear.
struct SplitLinearOptions {
  bool bias = true;
  std::uint64_t seed = 0;  // of the initial values
  at::ScalarType type = at::kFloat;
  // Sizes of the layers that one fused layer holds one after the other, such as gate and up: the
  // ranks share each of them. For a RowLinear: of the slices that were concatenated before. Empty:
  // one.
  std::vector<std::int64_t> parts = {};
  // Sequence parallelism, with the same number of tokens in each call. For other numbers give the
  // shards to forward().
  std::optional<TokenShards> shards = {};
};

}  // namespace trestle::tensor_parallel
