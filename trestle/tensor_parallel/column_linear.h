#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <iosfwd>
#include <optional>

#include "trestle/nn/parameter_slice.h"
#include "trestle/tensor_parallel/linear.h"
#include "trestle/tensor_parallel/split_linear_options.h"
#include "trestle/tensor_parallel/tensor_ranks.h"

namespace trestle::tensor_parallel {

// torch::nn::Linear whose outputs tensor ranks share: column_product() (linear.h) as a module. With
// a RowLinear it makes an MLP of your own, as a layer of nn::Layers or a member of a module:
//
//   struct MlpImpl : torch::nn::Module {
//     MlpImpl(const TensorRanks& ranks, const std::string& name)
//         : up(register_module("up", ColumnLinear(ranks.of(name + ".up"), 64, 250))),
//           down(register_module("down", RowLinear(ranks.of(name + ".down"), 250, 64))) {}
//     at::Tensor forward(const at::Tensor& x) { return x + down(at::relu(up(x))); }
//     ColumnLinear up;
//     RowLinear down;
//   };
//   const DeviceMesh mesh(world, {{"replicate", 2}, {"tensor", 2}});
//   const TensorRanks ranks(mesh);
//   nn::Layers net;
//   net.add("mlp", [ranks] { return std::make_shared<MlpImpl>(ranks, "mlp"); });
//   auto parallel = parallelize(net, mesh, {.tensor_ranks = ranks});
//
// The ranks' name, which is the layer's name in the unsplit model, is the key of the initial
// values, and is in every message. Element i of the whole weight or bias depends on (seed, name, i)
// alone, so any number of ranks begins with the same bits. Values are uniform as those of torch's
// Linear: from -1 / sqrt(inputs) to 1 / sqrt(inputs).
//
// Sizes that do not divide are shared unevenly, by nn::even_range(). parallelize(), clipping,
// checkpoints and tensor_parallel::split() read the slices. The output is a slice. For the whole
// output:
//
//   at::Tensor scores = gather(ranks, Sharded(head(x), -1, 50257)).tensor;
//
// The constructor throws UsageError without a name, for sizes below 1, for fewer outputs (of a
// part) than ranks, and for parts whose sum is another one.
struct ColumnLinearImpl : torch::nn::Module, nn::SlicedParameters {
  ColumnLinearImpl(TensorRanks ranks, std::int64_t inputs, std::int64_t outputs,
                   SplitLinearOptions options = {});

  // x [..., inputs], whole and equal on all ranks: this rank's outputs [..., own]. With token
  // shards x [..., own tokens, inputs]: [..., all tokens, own]. `shards` replaces those of the
  // options. Throws UsageError for other sizes, and for an x that was branched (operators.h).
  at::Tensor forward(const at::Tensor& x, const std::optional<TokenShards>& shards = {});

  nn::ParameterSlices parameter_slices() const override;
  void pretty_print(std::ostream& stream) const override;

  TensorRanks ranks;
  std::int64_t inputs, outputs;  // of the whole layer
  SplitLinearOptions options;
  at::Tensor weight;  // [own outputs, inputs]
  at::Tensor bias;    // [own outputs]; undefined without a bias
};
TORCH_MODULE(ColumnLinear);

}  // namespace trestle::tensor_parallel
