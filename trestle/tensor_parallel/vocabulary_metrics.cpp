#include "trestle/tensor_parallel/vocabulary_metrics.h"

#include <ATen/ATen.h>

#include <limits>

#include "trestle/nn/loss.h"
#include "trestle/nn/token_loss.h"
#include "trestle/tensor_parallel/collectives.h"
#include "trestle/tensor_parallel/vocabulary_rows.h"

namespace trestle::tensor_parallel {

namespace {

double counted(const at::Tensor& target) {
  return static_cast<double>(target.ne(nn::ignored_target).sum().item<std::int64_t>());
}

// This rank's best score of each token and its id, fp64 [1, 2, tokens], which holds both exactly.
// A rank without ids has the score that loses against every other one of a lower rank.
at::Tensor best_of_own(const nn::IndexRange& own, const at::Tensor& scores) {
  const at::TensorOptions wide = scores.options().dtype(at::kDouble);
  if (own.size == 0)
    return at::full({1, 2, scores.size(0)}, -std::numeric_limits<double>::infinity(), wide);
  const at::Tensor id = scores.argmax(1);
  const at::Tensor score = scores.gather(1, id.unsqueeze(1)).squeeze(1);
  return at::stack({score.to(at::kDouble), id.add(own.begin).to(at::kDouble)}).unsqueeze(0);
}

}  // namespace

nn::Tally vocabulary_log_probability_tally(const VocabularyShard& shard, const at::Tensor& scores,
                                           const at::Tensor& target) {
  const at::NoGradGuard no_grad;
  check_vocabulary(shard);
  check_scores("log_probability", shard, scores, target, nn::ignored_target);
  if (shard.ranks.alone()) return nn::log_probability_tally(scores, target);
  const at::Tensor ids = target.flatten();
  const VocabularyRows rows = vocabulary_rows(shard, scores.flatten(0, 1), ids, Total::None);
  const at::Tensor log_probability =
      (rows.target - rows.sum.log()).masked_fill_(ids.eq(nn::ignored_target), 0);
  return {log_probability.sum().item<double>(), counted(target)};
}

nn::Tally vocabulary_accuracy_tally(const VocabularyShard& shard, const at::Tensor& scores,
                                    const at::Tensor& target) {
  const at::NoGradGuard no_grad;
  check_vocabulary(shard);
  check_shapes("token_accuracy", shard, scores, target);
  if (shard.ranks.alone()) return nn::token_accuracy_tally(scores, target);
  // argmax takes the first of equal scores, and NaN before numbers: over the ranks as over the ids.
  const at::Tensor best =
      gather(named_ranks(shard.ranks), best_of_own(shard.own(), scores.flatten(0, 1)), 0,
             shard.ranks.size())
          .get();
  const at::Tensor rank = best.select(1, 0).argmax(0, /*keepdim=*/true);
  const at::Tensor guess = best.select(1, 1).gather(0, rank).squeeze(0);
  return {static_cast<double>(guess.eq(target.flatten()).sum().item<std::int64_t>()),
          counted(target)};
}

at::Tensor whole_scores(const VocabularyShard& shard, const at::Tensor& own) {
  const at::NoGradGuard no_grad;
  check_vocabulary(shard);
  check_own_scores("whole_scores", shard, own);
  if (shard.ranks.alone()) return own.detach();
  // The shards travel with the padded rows of the table, of which ranks hold about equally many.
  const std::int64_t padding = shard.ranks.own(shard.rows).size - own.size(2);
  return gather(named_ranks(shard.ranks),
                padding == 0 ? own : at::constant_pad_nd(own, {0, padding}), 2, shard.rows)
      .get()
      .narrow(2, 0, shard.vocabulary);
}

}  // namespace trestle::tensor_parallel
