#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <cstdint>

#include "trestle/tensor_parallel/vocabulary_shard.h"

// The softmax of scores [tokens, own] over a split vocabulary. Inside of tensor_parallel. Not
// installed.
namespace trestle::tensor_parallel {

// fp32, or fp64 for double.
at::ScalarType wide_type(const at::Tensor& scores);

// Throws UsageError unless 1 <= vocabulary <= rows.
void check_vocabulary(const VocabularyShard& shard);

// Throws UsageError unless the scores are [N, T, own].
void check_own_scores(const char* name, const VocabularyShard& shard, const at::Tensor& scores);
// And the target is int64 [N, T].
void check_shapes(const char* name, const VocabularyShard& shard, const at::Tensor& scores,
                  const at::Tensor& target);
// And each of its ids is `ignored` or below the vocabulary.
void check_scores(const char* name, const VocabularyShard& shard, const at::Tensor& scores,
                  const at::Tensor& target, std::int64_t ignored);

// The ranks with a name for messages, if they have none.
TensorRanks named_ranks(const TensorRanks& ranks);

// Which rows have a target among this rank's ids, and its column, which is 0 in other rows. Targets
// that do not count may be among them.
struct OwnTargets {
  OwnTargets(const at::Tensor& ids, const nn::IndexRange& own);
  at::Tensor theirs;   // bool [tokens]: it is no target of this rank
  at::Tensor columns;  // int64 [tokens, 1]
};

enum class Total { None, OfScores };

// Numbers of each token over all ranks' scores, each [tokens] in wide_type(). They are differences
// to the largest score: beside a score of 10,000 fp32 would round a logarithm of the sum away.
struct VocabularyRows {
  at::Tensor largest;  // score
  at::Tensor target;   // score of the target - largest; 0 for ids outside of the vocabulary
  at::Tensor sum;      // of exp(score - largest)
  at::Tensor total;    // of score - largest; only with Total::OfScores
};

// Sends two messages. `ids` are int64 [tokens].
VocabularyRows vocabulary_rows(const VocabularyShard& shard, const at::Tensor& scores,
                               const at::Tensor& ids, Total total);

// Calls body(first, number) for ranges of rows. The tensors that a body makes for its rows stay
// small beside the scores, and within a processor's cache.
template <class Body>
void for_rows(const at::Tensor& scores, const Body& body) {
  const std::int64_t elements = std::int64_t{1} << (scores.is_cuda() ? 22 : 18);
  const std::int64_t rows = scores.size(0);
  const std::int64_t at_once =
      std::max(elements / std::max(scores.size(1), std::int64_t{1}), std::int64_t{1});
  for (std::int64_t first = 0; first < rows; first += at_once)
    body(first, std::min(at_once, rows - first));
}

}  // namespace trestle::tensor_parallel
