#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include "trestle/models/transformer/config.h"
#include "trestle/models/transformer/projection.h"

namespace trestle::models {

// The two-layer network of a block.
//
// Gpt2: down(activation(up(x))), with up = [mlp, width].
// Llama: down(activation(gate(x)) * up(x)) (SwiGLU, Shazeer 2020). The gate and the up projection
// are one weight "gate_up" with the parts gate and up.
struct MlpImpl : torch::nn::Module {
  MlpImpl(const TransformerConfig& config, const LowRankOptions& adapters, const Drawn& drawn,
          double down_deviation, const TensorSplit& tensor = {});

  // `tokens` as for ProjectionImpl::forward().
  at::Tensor forward(const at::Tensor& x, std::int64_t tokens = 0);

  TransformerConfig config;
  Projection up = nullptr;  // registered as "up", or as "gate_up" for Llama
  Projection down = nullptr;
};
TORCH_MODULE(Mlp);

}  // namespace trestle::models
