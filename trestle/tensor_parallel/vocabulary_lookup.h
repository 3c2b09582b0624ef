#pragma once

#include <ATen/core/Tensor.h>

#include "trestle/nn/parameter_slice.h"

// Rows of a table that tensor ranks share. Not installed.
namespace trestle::tensor_parallel {

// Throws UsageError for ids outside of a table of `rows` rows.
void refuse_ids_outside(const at::Tensor& ids, std::int64_t rows);

// The vectors of the ids in this rank's rows, and 0 for other ids: a term of the sum over the
// ranks, which is exact. look_up(numbers) gives the vectors of rows of this rank's table.
template <class LookUp>
at::Tensor look_up_own(const at::Tensor& ids, const nn::IndexRange& own, const LookUp& look_up) {
  const at::Tensor row = ids - own.begin;
  const at::Tensor elsewhere = (row < 0).logical_or(row >= own.size);
  return look_up(row.masked_fill(elsewhere, 0)).masked_fill(elsewhere.unsqueeze(-1), 0);
}

}  // namespace trestle::tensor_parallel
