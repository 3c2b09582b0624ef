#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/device/named_tensors.h"

// Rows of zeros at the end of a tensor that a model has and its checkpoints do not, such as the
// padding of a vocabulary: a checkpoint then fits a model with another padding.
//
//   const checkpoint::PaddedRows padding = {{"embed.tokens", {.saved = 50257, .in_model = 50304}}};
//   auto saved = checkpoint::without_padding(net.named_parameters(), padding);
namespace trestle::checkpoint {

struct TensorShard;
using TensorGroups = std::map<std::string, std::vector<TensorShard>>;

struct RowCounts {
  std::int64_t saved = 0, in_model = 0;
};
// By the parameter's name. It holds for the state of that parameter too, "<parameter>.<state>",
// where that has the same number of rows.
using PaddedRows = std::map<std::string, RowCounts>;

// The counts for a tensor of this name, which may be a parameter's state; null for most.
const RowCounts* find_rows(const PaddedRows& padding, std::string_view name);

// The same tensors, the padded ones as views of the rows that are saved.
NamedTensors without_padding(NamedTensors tensors, const PaddedRows& padding);
// The same for boxes of tensors. A box of nothing but padding is left out.
TensorGroups without_padding(TensorGroups groups, const PaddedRows& padding);

}  // namespace trestle::checkpoint
