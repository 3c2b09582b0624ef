#pragma once

#include "trestle/nn/loss.h"
#include "trestle/tensor_parallel/vocabulary_shard.h"

namespace trestle::tensor_parallel {

// nn::token_cross_entropy() of scores that tensor ranks hold together: the same mean, weight, name,
// checks and messages. Each rank gives its own scores [N, T, own], where own is
// shard.own().size, and the same target ids int64 [N, T] of the whole vocabulary. All ranks get the
// same loss, and the gradient of their own scores.
//
//   const nn::Loss loss = vocabulary_cross_entropy({ranks, 50257, 50304});
//   loss.value(own_scores, target).backward();
//
// Sums are made in fp32, or in fp64 for scores in double. The loss has the type that
// nn::token_cross_entropy() gives it: fp32 under autocast, otherwise that of the scores. The
// gradient has the scores' type. Label smoothing is over the whole vocabulary. Scores of -inf count
// as tokens that cannot come; a NaN on one rank makes the loss NaN on all.
//
// The forward sends two messages: the largest score of each token, and then two sums (three with
// label smoothing). The backward sends nothing. It keeps the scores and two numbers for each token:
// no copy of the scores, and no probabilities.
//
// One rank alone computes nn::token_cross_entropy(). A second derivative over several ranks throws
// UsageError, and so do scores of another width than own, a vocabulary below 1 or above `rows`, and
// label smoothing outside of 0 to 1.
//
// Source: Shoeybi et al. 2019 (Megatron-LM), section 3.
nn::Loss vocabulary_cross_entropy(const VocabularyShard& shard,
                                  const nn::CrossEntropyOptions& options = {});

}  // namespace trestle::tensor_parallel
