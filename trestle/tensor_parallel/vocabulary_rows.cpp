#include "trestle/tensor_parallel/vocabulary_rows.h"

#include <ATen/ATen.h>

#include <limits>
#include <vector>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/nn/token_targets.h"
#include "trestle/tensor_parallel/collectives.h"

namespace trestle::tensor_parallel {

at::ScalarType wide_type(const at::Tensor& scores) {
  return scores.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
}

void check_vocabulary(const VocabularyShard& shard) {
  if (shard.vocabulary >= 1 && shard.vocabulary <= shard.rows) return;
  throw UsageError(text("a vocabulary of ", shard.vocabulary, " tokens in a table of ", shard.rows,
                        " rows: it must be from 1 to the number of rows"));
}

void check_own_scores(const char* name, const VocabularyShard& shard, const at::Tensor& scores) {
  const nn::IndexRange own = shard.own();
  if (scores.dim() == 3 && scores.size(2) == own.size) return;
  throw UsageError(
      text(name, ": rank ", shard.ranks.rank(), " of ", shard.ranks.size(),
           " tensor ranks has the scores [N, T, ", own.size, "] of the tokens from ", own.begin,
           " on, of ", shard.vocabulary, "; got [", join(scores.sizes(), ", "), "]"),
      {.hint = "Each rank gives the scores of its own rows, without those of padded rows."});
}

void check_shapes(const char* name, const VocabularyShard& shard, const at::Tensor& scores,
                  const at::Tensor& target) {
  std::vector<std::int64_t> whole = scores.sizes().vec();
  if (whole.size() == 3) whole[2] = shard.vocabulary;
  nn::check_token_shapes(name, whole, target);
  check_own_scores(name, shard, scores);
}

void check_scores(const char* name, const VocabularyShard& shard, const at::Tensor& scores,
                  const at::Tensor& target, std::int64_t ignored) {
  check_shapes(name, shard, scores, target);
  nn::check_token_ids(name, target, shard.vocabulary, ignored);
  // As the kernels of losses do: without a wait for the device.
  if (target.is_cuda())
    at::_assert_async(target.ge(0)
                          .logical_and_(target.lt(shard.vocabulary))
                          .logical_or_(target.eq(ignored))
                          .all(),
                      "a target is outside of the vocabulary");
}

TensorRanks named_ranks(const TensorRanks& ranks) {
  return ranks.layer().empty() ? ranks.of("scores of the vocabulary") : ranks;
}

OwnTargets::OwnTargets(const at::Tensor& ids, const nn::IndexRange& own)
    : theirs(ids.lt(own.begin).logical_or_(ids.ge(own.begin + own.size))),
      columns(ids.sub(own.begin).masked_fill_(theirs, 0).unsqueeze(1)) {}

VocabularyRows vocabulary_rows(const VocabularyShard& shard, const at::Tensor& scores,
                               const at::Tensor& ids, Total total) {
  const TensorRanks ranks = named_ranks(shard.ranks);
  const nn::IndexRange own = shard.own();
  const at::TensorOptions wide = scores.options().dtype(wide_type(scores));
  VocabularyRows rows;
  rows.largest = own.size == 0
                     ? at::full({scores.size(0)}, -std::numeric_limits<double>::infinity(), wide)
                     : scores.amax(1).to(wide_type(scores));
  largest_in_place(ranks, rows.largest).get();
  const at::Tensor sums = at::zeros({total == Total::None ? 2 : 3, scores.size(0)}, wide);
  if (own.size > 0) {
    for_rows(scores, [&](std::int64_t first, std::int64_t number) {
      const at::Tensor below =
          scores.narrow(0, first, number).sub(rows.largest.narrow(0, first, number).unsqueeze(1));
      if (total == Total::OfScores) sums.select(0, 2).narrow(0, first, number).copy_(below.sum(1));
      sums.select(0, 1).narrow(0, first, number).copy_(below.exp_().sum(1));
    });
    const OwnTargets targets(ids, own);
    sums.select(0, 0).copy_(scores.gather(1, targets.columns)
                                .squeeze(1)
                                .sub(rows.largest)
                                .masked_fill_(targets.theirs, 0));
  }
  sum_in_place(ranks, sums).get();
  rows.target = sums.select(0, 0);
  // The largest score alone is exp(0) = 1. On paper a rank without tokens has no term.
  rows.sum = sums.select(0, 1).clamp_min(1);
  if (total == Total::OfScores) rows.total = sums.select(0, 2);
  return rows;
}

}  // namespace trestle::tensor_parallel
