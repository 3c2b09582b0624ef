#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "trestle/nn/keyed_dropout.h"
#include "trestle/tensor_parallel/linear.h"
#include "trestle/tensor_parallel/tensor_ranks.h"

namespace trestle::models {

// The ranks that split a transformer's layers, and how.
struct TensorSplit {
  tensor_parallel::TensorRanks ranks = {};  // one rank alone: the layers are whole
  // Whether norms, dropout and the sums of the blocks work on shards of the tokens (Korthikanti et
  // al. 2022). It needs less memory, and sends the same bytes.
  bool sequence = false;

  bool shards_tokens() const { return sequence && !ranks.alone(); }

  TensorSplit of(const std::string& layer) const { return {ranks.of(layer), sequence}; }

  // For x [N, own tokens, features] of a row with `tokens` tokens; nothing where x is whole.
  std::optional<tensor_parallel::TokenShards> shards(std::int64_t tokens) const {
    if (!shards_tokens()) return std::nullopt;
    return tensor_parallel::TokenShards{.dimension = 1, .tokens = tokens};
  }
  std::optional<nn::DropoutSlice> dropout_slice(std::int64_t tokens) const {
    if (!shards_tokens()) return std::nullopt;
    return nn::DropoutSlice{.dimension = 1, .begin = ranks.own(tokens).begin, .whole = tokens};
  }
};

// The scores that a rank of several returns.
enum class SplitScores {
  Joined,  // all of them, on every rank
  // In training [..., own rows], those of the rows of the table that this rank holds, for
  // tensor_parallel::vocabulary_cross_entropy(). In evaluation mode all of them.
  Own,
};

}  // namespace trestle::models
