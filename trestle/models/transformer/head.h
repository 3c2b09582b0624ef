#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "trestle/models/transformer/config.h"
#include "trestle/models/transformer/initialize.h"

namespace trestle::models {

// Vectors [..., width] to scores [..., vocabulary], without a bias. In a model with a tied head the
// weight is the embedding's table.
struct HeadImpl : torch::nn::Module {
  HeadImpl(const TransformerConfig& config, const Drawn& drawn);

  at::Tensor forward(const at::Tensor& x);

  at::Tensor weight;  // [vocabulary, width]
};
TORCH_MODULE(Head);

}  // namespace trestle::models
