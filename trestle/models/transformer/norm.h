#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

#include "trestle/models/transformer/config.h"
#include "trestle/models/transformer/tensor_split.h"

namespace trestle::models {

// The normalization of a transformer over the last dimension [..., width], in x's dtype.
//
// Gpt2: layer norm (Ba, Kiros, Hinton 2016) with weight and bias.
// Llama: RMS norm (Zhang, Sennrich 2019): x / sqrt(mean(x^2) + epsilon) in fp32, rounded to x's
// dtype, and then times the weight, in the order of Hugging Face's LlamaRMSNorm.
//
// On shards of the tokens, the gradients of weight and bias are added up over the tensor ranks.
struct NormImpl : torch::nn::Module {
  NormImpl(const TransformerConfig& config, at::ScalarType type, const TensorSplit& tensor = {});

  at::Tensor forward(const at::Tensor& x);

  TransformerConfig::Style style;
  double epsilon;
  TensorSplit tensor;
  at::Tensor weight;  // [width], ones
  at::Tensor bias;    // [width], zeros; undefined for Llama
};
TORCH_MODULE(Norm);

}  // namespace trestle::models
