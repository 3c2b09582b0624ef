#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "trestle/models/transformer/config.h"
#include "trestle/models/transformer/initialize.h"

namespace trestle::models {

// Vectors [..., width] to scores [..., vocabulary], without a bias. In a model with a tied head the
// weight is the embedding's table. Padded rows give no scores: a loss, a choice of the next token
// and a check of targets see the tokens alone, as if the score of a padded row were -inf.
struct HeadImpl : torch::nn::Module {
  HeadImpl(const TransformerConfig& config, const Drawn& drawn);

  at::Tensor forward(const at::Tensor& x);

  // From now on forward() multiplies by the weight's numbers rounded to int8 rows, which are
  // buffers: the largest matrix of a small model is read for each token that it writes. The weight
  // stays as it is, because a tied one is the embedding's table.
  void round_to_int8();

  at::Tensor weight;  // [table_rows(config), width]
  std::int64_t vocabulary;
  at::Tensor rows, scales;  // [vocabulary, width] and [vocabulary], after round_to_int8()
};
TORCH_MODULE(Head);

}  // namespace trestle::models
