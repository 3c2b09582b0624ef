#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trestle/models/transformer/attend.h"
#include "trestle/models/transformer/config.h"
#include "trestle/models/transformer/initialize.h"
#include "trestle/models/transformer/low_rank.h"
#include "trestle/models/transformer/tensor_split.h"
#include "trestle/nn/layers.h"

// GPT-2 (Radford et al. 2019) and Llama (Touvron et al. 2023) style language models.
//
//   auto config = trestle::models::named_config("gpt2");
//   trestle::nn::Layers net = trestle::models::transformer(config, {.seed = 42});
//   at::Tensor scores = net.forward(ids);  // ids int64 [N, T] -> [N, T, vocabulary]
namespace trestle::models {

struct TransformerOptions {
  std::uint64_t seed = 42;  // of the initial weights
  InitialWeights weights = InitialWeights::Drawn;
  // The type of the parameters. bf16 halves the memory of generation. With double, rotary factors,
  // written attention and the attention of a single token still have fp32's precision.
  at::ScalarType type = at::kFloat;
  AttentionCore attention = AttentionCore::Fused;
  LowRankOptions adapters = {};  // with any, all other parameters are frozen
  // The type of the matrices that are not trained. Another one than Float32 freezes all of them,
  // also without adapters: a model that writes text from int8 weights.
  FrozenType frozen_type = FrozenType::Float32;
  // Splits each layer over tensor ranks (Shoeybi et al. 2019): heads, the inner width of the MLP
  // and the rows of the vocabulary's tables. Each rank makes its slices alone, with the bits of the
  // unsplit model; layers.h's graph() has their places (nn::slices_of()). All ranks run the same
  // batches. transformer() compares the ranks' configs and options, so all ranks call it.
  //
  //   trestle::DeviceMesh mesh(world, {{"tensor", 2}});
  //   auto net = trestle::models::transformer(
  //       config, {.tensor = {.ranks = trestle::tensor_parallel::TensorRanks(mesh)}});
  TensorSplit tensor = {};
  SplitScores scores = SplitScores::Joined;
  // Computes the core of each attention again in the backward, in place of keeping its scores and
  // weights (selective recomputation, Korthikanti et al. 2022). Gradients are the same.
  bool recompute_attention = false;
};

// The layers "embed", "blocks.0" to "blocks.<layers - 1>", "norm" and "head". With a tied head,
// head.weight is embed.tokens and is listed under that name alone. Layers are factories.
//
// Takes ids int64 [N, T], T at most config.context, or [N, T, 2] with the places of packed or
// padded rows (embedding.h), which every block takes. Returns scores [N, T, vocabulary].
//
// The initial weights are GPT-2's: normal with deviation 0.02, residual projections divided by
// sqrt(2 layers), biases 0, norms 1. Each is drawn by index from (seed, name, flat index).
//
// Throws UsageError for sizes below 1, heads that kv_heads do not divide, an odd head size with
// rotary positions, attention dropout with a core that has none, and, on all tensor ranks with the
// first difference, for ranks that were given different configs or options.
nn::Layers transformer(const TransformerConfig& config, const TransformerOptions& options = {});

// The numbers of tensor ranks, up to `most`, that a model of this config can be split over: they
// divide its heads, and divide kv_heads or are a multiple of them.
std::vector<int> tensor_sizes(const TransformerConfig& config, int most);

// The parts that may have adapters: LowRankOptions::targets.
std::vector<std::string> adapter_targets(const TransformerConfig& config);

}  // namespace trestle::models
