#pragma once

#include <algorithm>
#include <cstdint>

#include "trestle/nn/parameter_slice.h"
#include "trestle/tensor_parallel/tensor_ranks.h"

namespace trestle::tensor_parallel {

// How tensor ranks hold the table of a vocabulary: each its even_range() of the rows. The rows from
// `vocabulary` on are padding, which has no scores. Ranks may hold one row more than others, and
// the last ranks may hold no true row.
//
//   const VocabularyShard shard{ranks, 50257, 50304};
//   shard.own();   // rank 3 of 4: {.begin = 37728, .size = 12529}
struct VocabularyShard {
  TensorRanks ranks = {};
  std::int64_t vocabulary = 0;
  std::int64_t rows = 0;  // of the whole table, at least `vocabulary`

  // This rank's true rows: the ids whose scores it has.
  nn::IndexRange own() const {
    const nn::IndexRange held = ranks.own(rows);
    return {held.begin, std::clamp(vocabulary - held.begin, std::int64_t{0}, held.size)};
  }
};

}  // namespace trestle::tensor_parallel
