#pragma once

#include "trestle/nn/loss.h"
#include "trestle/nn/metrics.h"

// The loss and the metrics of language models: scores [N, T, V] and token ids int64 [N, T], with
// the classes in the last dimension. Tokens equal to ignored_target do not count.
namespace trestle::nn {

// Mean cross-entropy over the tokens that count. Additive; the weight is their number, so the loss
// of a batch is the mean over its tokens, however they are divided into micro-batches. Otherwise as
// cross_entropy().
Loss token_cross_entropy(const CrossEntropyOptions& options = {});

// The sum of the tokens' log probabilities in nats, and their number. The mean is the negative
// loss, and exp(-mean) the perplexity.
Tally log_probability_tally(const at::Tensor& output, const at::Tensor& target);

// The same for the tokens whose score is the largest.
Tally token_accuracy_tally(const at::Tensor& output, const at::Tensor& target);

}  // namespace trestle::nn
