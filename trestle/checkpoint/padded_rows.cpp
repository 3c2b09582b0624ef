#include "trestle/checkpoint/padded_rows.h"

#include <algorithm>
#include <utility>

#include "trestle/checkpoint/checkpoint_folder.h"

namespace trestle::checkpoint {

const RowCounts* find_rows(const PaddedRows& padding, std::string_view name) {
  for (const auto& [parameter, rows] : padding)
    if (name == parameter ||
        (name.starts_with(parameter) && name.substr(parameter.size()).starts_with('.')))
      return &rows;
  return nullptr;
}

namespace {

at::Tensor saved_rows(const at::Tensor& tensor, const RowCounts& rows) {
  const bool padded = tensor.dim() > 0 && tensor.size(0) == rows.in_model;
  return padded ? tensor.detach().narrow(0, 0, rows.saved) : tensor;
}

TensorShard saved_rows(TensorShard shard, const RowCounts& rows) {
  if (shard.shape.empty()) {
    shard.tensor = saved_rows(shard.tensor, rows);
    return shard;
  }
  if (shard.shape[0] != rows.in_model) return shard;
  shard.shape[0] = rows.saved;
  const std::int64_t left = std::max<std::int64_t>(rows.saved - shard.offset[0], 0);
  if (left < shard.tensor.size(0)) shard.tensor = shard.tensor.detach().narrow(0, 0, left);
  if (left == 0) shard.offset[0] = rows.saved;
  return shard;
}

}  // namespace

NamedTensors without_padding(NamedTensors tensors, const PaddedRows& padding) {
  for (auto& [name, tensor] : tensors)
    if (const RowCounts* const rows = find_rows(padding, name)) tensor = saved_rows(tensor, *rows);
  return tensors;
}

TensorGroups without_padding(TensorGroups groups, const PaddedRows& padding) {
  for (auto& [group, shards] : groups)
    for (TensorShard& shard : shards)
      if (const RowCounts* const rows = find_rows(padding, shard.name))
        shard = saved_rows(std::move(shard), *rows);
  return groups;
}

}  // namespace trestle::checkpoint
