#pragma once

#include <ATen/core/Tensor.h>

#include "trestle/nn/metrics.h"
#include "trestle/tensor_parallel/vocabulary_shard.h"

// The metrics of nn/token_loss.h for scores that tensor ranks hold together, and the whole scores.
// Each rank gives its own scores [N, T, own], where own is shard.own().size, and the same target
// ids int64 [N, T] of the whole vocabulary. All ranks get the same results, without gradients.
//
// All ranks call the same function: it sends messages. Each throws UsageError for other shapes.
namespace trestle::tensor_parallel {

// nn::log_probability_tally() of the whole scores. Sends three numbers for each token. Throws
// UsageError for ids outside of the vocabulary.
nn::Tally vocabulary_log_probability_tally(const VocabularyShard& shard, const at::Tensor& scores,
                                           const at::Tensor& target);

// nn::token_accuracy_tally() of the whole scores: the smallest id wins among equal scores. Sends
// two numbers for each token.
nn::Tally vocabulary_accuracy_tally(const VocabularyShard& shard, const at::Tensor& scores,
                                    const at::Tensor& target);

// All ranks' scores side by side: [N, T, vocabulary].
at::Tensor whole_scores(const VocabularyShard& shard, const at::Tensor& own);

}  // namespace trestle::tensor_parallel
