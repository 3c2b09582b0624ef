#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <optional>
#include <tuple>

#include "trestle/models/transformer/config.h"
#include "trestle/models/transformer/initialize.h"
#include "trestle/models/transformer/tensor_split.h"
#include "trestle/nn/parameter_slice.h"

namespace trestle::models {

// Ids to vectors: the table "tokens" [table_rows(config), width], and for Gpt2 the table
// "positions" [context, width] of learned positions. Tensor ranks divide the rows of "tokens".
struct TokenEmbeddingImpl : torch::nn::Module, nn::SlicedParameters {
  // The tables have the type of `drawn`, the output `type`.
  TokenEmbeddingImpl(const TransformerConfig& config, const Drawn& drawn, at::ScalarType type,
                     const TensorSplit& tensor = {});

  // Ids int64 [N, T], or [N, T, 2] with the place of each token in its document: 0 begins a
  // document, and places below 0 are padding. Returns [N, T, width] and the places [N, T],
  // undefined for ids alone. With `tokens_so_far`, ids alone continue a text of that many tokens.
  //
  // With shards of the tokens: [N, own tokens, width], and for ids alone "places" [0, T], which say
  // how many tokens a row has on all ranks together.
  //
  // Throws UsageError for ids out of range, with the first one and its row and column, and for
  // more tokens than the context.
  std::tuple<at::Tensor, at::Tensor> forward(const at::Tensor& ids);

  // The same for ids at given positions, [N, T] or [T], without checks: generation.
  at::Tensor at(const at::Tensor& ids, const at::Tensor& positions_of_ids);

  nn::ParameterSlices parameter_slices() const override;

  TransformerConfig config;
  TensorSplit tensor;
  nn::IndexRange rows;  // of the whole table that "tokens" has
  at::Tensor tokens;
  at::Tensor positions;  // undefined for Llama
  at::ScalarType type;   // of the output
  bool follows_weights;  // the output has the type of tables that are cast, too
  std::optional<std::int64_t> tokens_so_far;  // of a ContinuedText

 private:
  at::Tensor looked_up(const at::Tensor& ids);
  at::Tensor on_shards(const at::Tensor& ids, const at::Tensor& positions_of_ids);
};
TORCH_MODULE(TokenEmbedding);

}  // namespace trestle::models
