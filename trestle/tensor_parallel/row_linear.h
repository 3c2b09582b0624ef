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

// torch::nn::Linear whose inputs tensor ranks share: row_product() (linear.h) as a module. Its
// input is the output of a ColumnLinear (column_linear.h, with an example), with elementwise
// functions or attention over whole heads between them.
//
//   RowLinear down(ranks.of("mlp.down"), 250, 64, SplitLinearOptions{.bias = false, .seed = 7});
//   at::Tensor y = down(at::relu(up(x)));
//
// Every rank holds the whole bias, which is added once, after the sum over the ranks. Initial
// values, names and uneven sizes are those of a ColumnLinear, and so are the constructor's errors,
// for inputs.
struct RowLinearImpl : torch::nn::Module, nn::SlicedParameters {
  RowLinearImpl(TensorRanks ranks, std::int64_t inputs, std::int64_t outputs,
                SplitLinearOptions options = {});

  // x [..., own inputs]: [..., outputs], whole and equal on all ranks. With token shards x has all
  // tokens, and the output has this rank's. `shards` replaces those of the options. Throws
  // UsageError for other sizes, and for an x whose gradient must be whole on every rank.
  at::Tensor forward(const at::Tensor& x, const std::optional<TokenShards>& shards = {});

  nn::ParameterSlices parameter_slices() const override;
  void pretty_print(std::ostream& stream) const override;

  TensorRanks ranks;
  std::int64_t inputs, outputs;  // of the whole layer
  SplitLinearOptions options;
  at::Tensor weight;  // [outputs, own inputs]
  at::Tensor bias;    // [outputs]; undefined without a bias
};
TORCH_MODULE(RowLinear);

}  // namespace trestle::tensor_parallel
