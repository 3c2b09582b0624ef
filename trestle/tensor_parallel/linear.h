#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "trestle/tensor_parallel/tensor_ranks.h"

// Products with a weight that tensor ranks split (Shoeybi et al. 2019), as functions of tensors.
// column_linear.h and row_linear.h are modules of them.
//
//   at::Tensor h = column_product(ranks, x, up, up_bias);        // x whole: own columns
//   at::Tensor y = row_product(ranks, at::relu(h), down, bias);  // y whole
//
// Both have the sequence parallel form (Korthikanti et al. 2022), in which x and y are shards of
// the tokens:
//
//   const TokenShards shards{.dimension = 1, .tokens = 1024};
//   at::Tensor h = column_product(ranks, x, up, up_bias, shards);
//   at::Tensor y = row_product(ranks, at::relu(h), down, bias, shards);
//
// One rank alone computes at::linear(). Autocast applies as to at::linear(). A second derivative
// throws UsageError.
namespace trestle::tensor_parallel {

// Each rank holds the nn::even_range() of the tokens.
struct TokenShards {
  std::int64_t dimension = 1;  // of the tokens, in x [N, tokens, features]
  std::int64_t tokens = 0;     // of all ranks together
};

// x [..., inputs], whole and equal on all ranks (or token shards), times the transposed rows
// `weight` [own rows, inputs], plus `bias` [own rows]: [..., own rows] for all tokens.
//
// The backward computes the gradient of x, starts its sum over the ranks, computes the gradient of
// the weight meanwhile, and waits. With token shards the forward gathers x and keeps the shard
// alone; the backward gathers it again. With a frozen weight nothing of x is kept.
at::Tensor column_product(const TensorRanks& ranks, const at::Tensor& x, const at::Tensor& weight,
                          const at::Tensor& bias = {},
                          const std::optional<TokenShards>& shards = {});

// x [..., own inputs] times the transposed columns `weight` [rows, own inputs], summed over the
// ranks, plus `bias` [rows], which all ranks hold, once: [..., rows], whole and equal on all ranks,
// or token shards.
//
// The gradient of the bias is whole and equal on all ranks, with token shards too.
at::Tensor row_product(const TensorRanks& ranks, const at::Tensor& x, const at::Tensor& weight,
                       const at::Tensor& bias = {}, const std::optional<TokenShards>& shards = {});

// The messages of column_product() and row_product() before and after their product, for another
// product than that with a matrix, such as one with quantised numbers or of several terms:
//
//   at::Tensor h = column_input(ranks, x).matmul(own_columns.t());   // your products
//   at::Tensor y = row_output(ranks, h.matmul(own_rows.t()));
//
// column_input() returns x with all its tokens, and adds up the gradients that the ranks' products
// give it. row_output() adds up the ranks' terms [..., rows], and returns all tokens or this rank's
// shard. Autograd keeps what your product keeps, such as all tokens of x. Both operators can be
// differentiated twice. Under autocast column_input() casts x, as at::linear() would.
at::Tensor column_input(const TensorRanks& ranks, const at::Tensor& x,
                        const std::optional<TokenShards>& shards = {});
at::Tensor row_output(const TensorRanks& ranks, const at::Tensor& own_term,
                      const std::optional<TokenShards>& shards = {});

}  // namespace trestle::tensor_parallel
