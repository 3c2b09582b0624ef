#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trestle/models/transformer/initialize.h"
#include "trestle/nn/keyed_dropout.h"
#include "trestle/nn/parameter_slice.h"

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
//
// A rank of several holds slices: of a's inputs beside a weight whose inputs are split, of b's rows
// beside one whose rows are split. Its projection (projection.h) then calls inner() and outer().
struct LowRankImpl : torch::nn::Module, nn::SlicedParameters {
  // The places of `a` and `b` in the whole matrices.
  struct Slices {
    nn::ParameterSlice a, b;
  };
  LowRankImpl(const LowRankOptions& options, Slices slices, const Drawn& drawn);

  at::Tensor forward(const at::Tensor& x);

  // The halves of forward(): [..., own inputs] to [..., rank], and that to [..., own rows]. The
  // matrices may be views of `a` and `b`, such as those of branch_parameters(). `slice` says which
  // part of the unsplit model's input x is.
  at::Tensor inner(const at::Tensor& x, const at::Tensor& of_a,
                   const std::optional<nn::DropoutSlice>& slice = {});
  at::Tensor outer(const at::Tensor& inner, const at::Tensor& of_b) const;

  nn::ParameterSlices parameter_slices() const override;

  double scale;
  double dropout;
  at::Tensor a, b;

 private:
  Slices slices_;
};
TORCH_MODULE(LowRank);

}  // namespace trestle::models
