#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <mutex>

#include "trestle/models/transformer/attend.h"
#include "trestle/models/transformer/config.h"
#include "trestle/models/transformer/projection.h"
#include "trestle/models/transformer/rotary.h"

namespace trestle::models {

// The keys and values of one layer for the tokens so far: [N, kv_heads, tokens, head_size], after
// the rotation. Empty before the first call. The tensors have room for more tokens than they hold,
// and grow by doubling.
struct KeyValueCache {
  at::Tensor keys;
  at::Tensor values;
  std::int64_t tokens = 0;

  // Appends keys and values [N, kv_heads, T, head_size] and returns views of all. `room` is the
  // number of tokens at which growth ends.
  std::pair<at::Tensor, at::Tensor> append(const at::Tensor& new_keys, const at::Tensor& new_values,
                                           std::int64_t room);

  // Keeps these rows (int64, of N) in this order, without their first `skipped` tokens.
  void keep(const at::Tensor& rows, std::int64_t skipped);
};

// Self-attention: queries, keys and values by one projection "qkv" with the parts q, k and v; the
// core (attend.h); the projection "out".
//
// Tensor ranks divide the heads. With fewer kv_heads than ranks, each rank computes an equal share
// of the columns of all keys and values, gathers them, and uses those of its own queries' head.
struct AttentionImpl : torch::nn::Module {
  AttentionImpl(const TransformerConfig& config, AttentionCore core, const LowRankOptions& adapters,
                const Drawn& drawn, double out_deviation, const TensorSplit& tensor = {});

  bool recomputes_core = false;  // in the backward; TransformerOptions::recompute_attention

  // x [N, T, width]; places as for document_mask(), or undefined. With shards of the tokens as for
  // BlockImpl::forward().
  at::Tensor forward(const at::Tensor& x, const at::Tensor& places);

  // The rotation at positions [N, T] or [T], on their device; undefined tensors for Gpt2. It is the
  // same for all layers of a model.
  Rotation rotation(const at::Tensor& positions);

  // forward() behind the cached tokens, to which the new ones are added. `mask` as in
  // AttendOptions, for all keys, or undefined.
  at::Tensor extend(const at::Tensor& x, const Rotation& rotation, const at::Tensor& mask,
                    KeyValueCache& cache);

  TransformerConfig config;
  AttentionCore core;
  Projection qkv = nullptr;
  Projection out = nullptr;
  at::Tensor frequencies;  // of the rotation, [head_size / 2]; undefined for Gpt2

 private:
  struct Heads {
    at::Tensor queries, keys, values;  // [N, heads, T, head_size]
  };
  Heads heads_of(const at::Tensor& x, const Rotation& rotation, std::int64_t tokens);
  at::Tensor joined(const at::Tensor& attended, std::int64_t tokens);
  bool gathers_keys() const;
  at::Tensor with_gathered_keys(const at::Tensor& own);

  TensorSplit tensor_;

  std::mutex moving_;  // of the frequencies to another device
};
TORCH_MODULE(Attention);

}  // namespace trestle::models
