#pragma once

#include "trestle/plan/transformer_memory.h"

// The sizes of a block on tensor rank 0. Inside of plan. Not installed.
namespace trestle::plan {

struct BlockWidths {
  std::int64_t tokens = 0;      // of all rows
  std::int64_t own_tokens = 0;  // those of norms, dropout and sums
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;    // that its queries use
  std::int64_t kv_columns = 0;  // of keys, and of values, that it computes
  std::int64_t mlp = 0;
  // Bytes of a number: of the sums of blocks, of inputs and outputs of products, of scores.
  Bytes sum = 0, product = 0, score = 0;
};

// Whether each rank keeps a share of a recomputed block's input, and the largest share.
inline bool shares_input(const BlockSettings& settings) {
  return settings.recompute == BlockSettings::Recompute::Block && settings.split_input;
}
inline std::int64_t share_of(std::int64_t numbers, const BlockSettings& settings) {
  return (numbers + settings.tensor - 1) / settings.tensor;
}

// Throws UsageError as kept_by_block().
BlockWidths widths_of(const BlockSizes& sizes, const BlockSettings& settings);

}  // namespace trestle::plan
