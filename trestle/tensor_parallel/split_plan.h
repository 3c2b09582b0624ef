#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "trestle/nn/layers.h"
#include "trestle/tensor_parallel/tensor_ranks.h"

// Tensor parallelism of any model, by a plan: rules that name layers and say how to split them.
//
//   trestle::nn::Layers net;
//   net.add("embed", torch::nn::Embedding(50257, 64));
//   net.add("up", torch::nn::Linear(64, 256));
//   net.add("relu", [](at::Tensor x) { return x.relu(); });
//   net.add("down", torch::nn::Linear(256, 64));
//   using trestle::tensor_parallel::Split;
//   trestle::DeviceMesh mesh(world, {{"replicate", 2}, {"tensor", 2}});
//   const trestle::tensor_parallel::TensorRanks ranks(mesh);
//   const auto plan = trestle::tensor_parallel::split(
//       net, ranks, {{"embed", Split::Vocabulary}, {"up", Split::Columns}, {"down", Split::Rows}});
//   std::cout << plan.description();
//   auto parallel = trestle::parallelize(net, mesh, {.tensor_ranks = ranks});
//
// The layers may be members of a program's own module at any depth: torch::nn::Linear, Embedding,
// Conv1d to Conv3d, ConvTranspose1d to ConvTranspose3d, BatchNorm1d to BatchNorm3d and GroupNorm.
// Their types stay, and so do their parameters' names and tensor objects.
//
// Loss and gradients equal those of the whole model if the layers between a column layer and its
// row layer treat each feature or channel alone: elementwise functions, pooling, dropout of no
// element, attention over whole heads. A parameter that those use, other than a split one, would
// get a gradient of this rank's slices alone; a row layer throws UsageError that names its shape.
namespace trestle::tensor_parallel {

enum class Split : std::uint8_t {
  // Output features or channels: whole input, this rank's slice of the output. For an Embedding the
  // features of a row.
  Columns,
  // The same, and the output is gathered: whole on every rank. A Linear's bias stays whole.
  ColumnsGathered,
  Rows,        // input features or channels: a slice as input, the sum of all ranks as output
  Vocabulary,  // an Embedding's rows; its output is whole
  // The channels of a batch norm or group norm between a column layer and its row layer, and of a
  // convolution with groups, such as one for each channel: input and output are slices.
  Channels,
};

// "columns", "columns, gathered", ...
const char* to_string(Split split);

struct SplitRule {
  // A layer's full name, such as "block1.mlp.down". * stands for any characters.
  std::string layer;
  Split split = Split::Columns;
  // Sizes of the layers that one fused layer holds one after the other, such as q, k and v: the
  // ranks share each of them. For Rows: of the slices that were concatenated before. A sum
  // other than the layer's size is a fault.
  std::vector<std::int64_t> parts = {};
  // Each part has this number of heads, which the ranks share evenly. 0: features may be shared
  // unevenly, by nn::even_range(). With fewer heads of keys than of queries: the number of those.
  std::int64_t heads = 0;
};

// One split layer.
struct SplitLayer {
  std::string name = {}, type = {};
  Split split = Split::Columns;
  std::string slice = {};  // "64 of 256 outputs"
  std::int64_t own_bytes = 0, whole_bytes = 0;
  std::string forward = {}, backward = {};  // what it sends: "256 B per token", or "nothing"
};

struct SplitPlan {
  int rank = 0, ranks = 1;
  std::vector<SplitLayer> layers;
  // A table, a line for each layer.
  std::string description() const;
};

// Splits layers of `net` over the ranks, in place: parameters become this rank's slices in memory
// of their own, and lose their gradients. A layer that is not created yet is created now for the
// checks, discarded, and split whenever it is created. Tied parameters stay tied. All ranks call it
// with the same model, before optimizers and pipelines are made of it.
//
// nn::slices_of(net.graph()) has the slices' places afterwards, for checkpoints and norms;
// parallelize() reads them. One rank alone leaves the model as it is.
//
// Throws UsageError with all faults of the plan, and changes nothing then:
// - a pattern that matches no layer, two rules for one layer, a layer that cannot be split so;
// - sizes that the ranks cannot share, with the numbers of ranks that could;
// - a column layer whose output no row layer joins, a row layer with whole input, a layer between
//   them that needs whole input;
// - a column layer with more outputs than its row layer has inputs, or slices of several layers
//   that may be concatenated before one, and no `parts`;
// - parts of a column layer that are not those of its row layer or norm;
// - tied parameters that are split differently;
// - ranks with different models, values of parameters or plans.
// The order of layers is known in nn::Layers and in torch::nn::Sequential. In a program's own
// module a column layer and a row layer after it make a pair. Shapes are checked at run time again.
SplitPlan split(const nn::Layers& net, const TensorRanks& ranks,
                const std::vector<SplitRule>& rules);

}  // namespace trestle::tensor_parallel
