#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>

#include "trestle/models/transformer/config.h"
#include "trestle/models/transformer/initialize.h"
#include "trestle/models/transformer/tensor_split.h"
#include "trestle/nn/parameter_slice.h"

namespace trestle::models {

// Vectors [..., width] to scores [..., vocabulary], without a bias. In a model with a tied head the
// weight is the embedding's table. Padded rows give no scores: a loss, a choice of the next token
// and a check of targets see the tokens alone, as if the score of a padded row were -inf. Tensor
// ranks divide the rows of the weight.
struct HeadImpl : torch::nn::Module, nn::SlicedParameters {
  HeadImpl(const TransformerConfig& config, const Drawn& drawn, const TensorSplit& tensor = {},
           SplitScores scores = SplitScores::Joined);

  // `places` [.., T] of the embedding say how many tokens a row has, if x is a shard of the tokens.
  at::Tensor forward(const at::Tensor& x, std::optional<at::Tensor> places = {});

  nn::ParameterSlices parameter_slices() const override;

  // From now on forward() multiplies by the weight's numbers rounded to int8 rows, which are
  // buffers: the largest matrix of a small model is read for each token that it writes. The weight
  // stays as it is, because a tied one is the embedding's table.
  void round_to_int8();

  at::Tensor weight;  // [table_rows(config), width], this rank's rows of it
  std::int64_t vocabulary;
  SplitScores split_scores;
  // The weight's true rows, or this rank's rows on one of several; after round_to_int8().
  at::Tensor rows, scales;

 private:
  at::Tensor own_scores(const at::Tensor& x, std::int64_t tokens);

  TensorSplit tensor_;
  nn::ParameterSlice slice_;
};
TORCH_MODULE(Head);

}  // namespace trestle::models
