#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <memory>
#include <optional>

#include "trestle/models/transformer/attention.h"
#include "trestle/models/transformer/mlp.h"
#include "trestle/models/transformer/norm.h"

namespace trestle::models {

// One block: x + attention(norm(x)), then the same with the MLP. Both sums stay in x's dtype.
struct BlockImpl : torch::nn::Module {
  BlockImpl(const TransformerConfig& config, AttentionCore core, const LowRankOptions& adapters,
            const Drawn& drawn, at::ScalarType norm_type, const TensorSplit& tensor = {});

  // x [N, T, width]; places int64 [N, T] of packed documents or padding (document_mask()), or none.
  // With shards of the tokens, x has this rank's, and places [0, T] stand for none.
  // With a `cache` and no places: extend() behind it.
  at::Tensor forward(const at::Tensor& x, std::optional<at::Tensor> places);

  // Behind cached tokens: see AttentionImpl::extend().
  at::Tensor extend(const at::Tensor& x, const Rotation& rotation, const at::Tensor& mask,
                    KeyValueCache& cache);

  double dropout;
  TensorSplit tensor;
  Norm attention_norm = nullptr;
  Attention attention = nullptr;
  Norm mlp_norm = nullptr;
  Mlp mlp = nullptr;
  std::unique_ptr<KeyValueCache> cache;  // of a ContinuedText, or null
};
TORCH_MODULE(Block);

}  // namespace trestle::models
