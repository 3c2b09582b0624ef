#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>
#include <vector>

#include "trestle/models/transformer/initialize.h"

namespace trestle::models {

// LoRA (Hu et al. 2021): a trained product of two small matrices beside a frozen weight.
struct LowRankOptions {
  std::int64_t rank = 0;  // 0 = no adapters; then the model's own weights are trained
  double alpha = 16;      // the product is multiplied by alpha / rank
  double dropout = 0;     // of the adapter's input, in training
  // The parts of projections that get an adapter, by the names that PEFT's target_modules have:
  // q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj and down_proj for Llama; c_attn, c_proj
  // (of the attention and the MLP) and c_fc for Gpt2.
  std::vector<std::string> targets = {};

  bool any() const { return rank > 0; }
};

// The dtype of the frozen matrices of a model with adapters.
enum class FrozenType {
  Float32,
  BFloat16,  // half the memory; products are rounded to bf16, everything around them is fp32
  Int8,      // of the blocks' projections, with a scale for each row (int8_rows.h); tables are bf16
};

// scale * b(a(dropout(x))): [..., inputs] to [..., rows]. `a` [rank, inputs] is drawn, uniform as
// in torch's Linear. `b` [rows, rank] is 0, so that an adapted model begins as the model itself.
struct LowRankImpl : torch::nn::Module {
  LowRankImpl(const LowRankOptions& options, std::int64_t inputs, std::int64_t rows,
              const Drawn& drawn);

  at::Tensor forward(const at::Tensor& x);

  double scale;
  double dropout;
  at::Tensor a, b;
};
TORCH_MODULE(LowRank);

}  // namespace trestle::models
