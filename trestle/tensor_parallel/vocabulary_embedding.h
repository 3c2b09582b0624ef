#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <iosfwd>
#include <optional>

#include "trestle/nn/parameter_slice.h"
#include "trestle/tensor_parallel/linear.h"
#include "trestle/tensor_parallel/tensor_ranks.h"

namespace trestle::tensor_parallel {

struct VocabularyEmbeddingOptions {
  std::uint64_t seed = 0;  // of the initial values
  at::ScalarType type = at::kFloat;
  // The output has this rank's tokens alone. `tokens` may stay 0: the ids have all of them.
  std::optional<TokenShards> shards = {};
};

// torch::nn::Embedding whose rows tensor ranks share. Each rank looks up the ids in its rows, and
// the ranks add up: each vector has the bits of the whole table's.
//
//   VocabularyEmbedding embed(ranks.of("embed"), 50257, 64);
//   at::Tensor x = embed(ids);   // ids [N, T]: [N, T, 64], equal on all ranks
//
// A head that shares the table is a ColumnLinear:
//
//   const TensorRanks ranks(world.group());
//   nn::Layers net;
//   net.add("embed", [ranks] { return VocabularyEmbedding(ranks.of("embed"), 50257, 64); });
//   net.add("head", [ranks] {
//     return ColumnLinear(ranks.of("head"), 64, 50257, SplitLinearOptions{.bias = false});
//   });
//   net.tie("head.weight", "embed.weight", &ColumnLinearImpl::weight);
//
// Its scores are the input of vocabulary_cross_entropy({ranks, 50257, 50257}).
//
// Initial values are normal with deviation 1, as those of torch's Embedding, and are drawn by index
// as those of a ColumnLinear (column_linear.h). The constructor throws UsageError without a name,
// for sizes below 1 and for fewer rows than ranks.
struct VocabularyEmbeddingImpl : torch::nn::Module, nn::SlicedParameters {
  VocabularyEmbeddingImpl(TensorRanks ranks, std::int64_t rows, std::int64_t width,
                          VocabularyEmbeddingOptions options = {});

  // Ids int64 of any shape, whole and equal on all ranks: [..., width], whole, or with shards this
  // rank's tokens. Throws UsageError for ids outside of the table, and for another type.
  at::Tensor forward(const at::Tensor& ids);

  nn::ParameterSlices parameter_slices() const override;
  void pretty_print(std::ostream& stream) const override;

  TensorRanks ranks;
  std::int64_t rows, width;  // of the whole table
  VocabularyEmbeddingOptions options;
  at::Tensor weight;  // [own rows, width]
};
TORCH_MODULE(VocabularyEmbedding);

}  // namespace trestle::tensor_parallel
