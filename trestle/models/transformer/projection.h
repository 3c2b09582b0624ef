#pragma once

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "trestle/models/transformer/initialize.h"
#include "trestle/models/transformer/int8_rows.h"
#include "trestle/models/transformer/low_rank.h"
#include "trestle/models/transformer/product.h"
#include "trestle/models/transformer/tensor_split.h"
#include "trestle/nn/parameter_slice.h"

namespace trestle::models {

// A range of a projection's rows that has a meaning of its own, such as the queries of a fused
// projection of queries, keys and values. `heads` is the number of heads that share its rows
// equally, 1 for rows without heads. A split over tensor ranks divides the rows of each part.
struct ProjectionPart {
  std::string name;
  std::int64_t rows = 0;
  std::int64_t heads = 1;
  std::string target = {};  // its name for LowRankOptions::targets; empty: it has no adapter
};

enum class Bias { None, Added };

// The dimension of a weight that the tensor ranks divide.
enum class ProjectionSplit {
  None,
  Columns,  // the rows of each part, and with them the columns of the output
  Rows,     // the inputs; the outputs of all ranks are added up
};

struct ProjectionOptions {
  std::int64_t inputs = 0;
  std::vector<ProjectionPart> parts;  // of the weight's rows, in their order
  std::string target = {};            // of an adapter for all rows together
  Bias bias = Bias::Added;
  // Adapters for the targets that it names. Then weight and bias are frozen.
  LowRankOptions adapters = {};
  ProjectionSplit split = ProjectionSplit::None;
  TensorSplit tensor = {};
};

// x [..., inputs] times the transposed weight, plus a bias: [..., rows]. Several projections of one
// input are one weight with named parts, because one large product is faster than several small
// ones. An adapter is registered as "lora_<part>", or as "lora" for all rows.
//
// A rank of several holds nn::even_range()s of the split dimension, draws them alone, and returns
// its columns, or the sum of all ranks. So it does with adapters:
//
// - Split columns: each rank multiplies its tokens by all of `a`, and the ranks' gradients of that
//   product [..., rank], which is short, are added up. Gradients of `a` are whole on every rank.
// - Split rows: the adapter's term joins the weight's own before both are added up over the ranks.
//   `b` is whole, and its gradients are added up in the backward.
//
// A row of int8 has the scale of all its inputs, also where a rank holds some of them.
struct ProjectionImpl : torch::nn::Module, nn::SlicedParameters {
  // The weight is normal with this deviation (initialize.h); the bias is 0. With the type int8 the
  // drawn weight is rounded (int8_rows.h) and frozen, and the bias is fp32.
  ProjectionImpl(ProjectionOptions options, const Drawn& drawn, double deviation);

  // `tokens` are those of a row on all ranks together, if x or the output is a shard of the tokens;
  // otherwise 0.
  at::Tensor forward(const at::Tensor& x, std::int64_t tokens = 0);

  nn::ParameterSlices parameter_slices() const override;

  // Replaces int8 rows by the fp32 matrix that they stand for; the parameter "scales" is gone then.
  void dequantise();

  ProjectionOptions options;               // of the whole projection
  std::vector<nn::IndexRange> parts = {};  // of this rank, in the rows of `weight`
  at::Tensor weight;                       // [rows, inputs], of this rank
  at::Tensor scales;                       // [rows]; undefined unless the weight is int8
  at::Tensor bias;                         // [rows]; undefined without a bias

  struct Adapter {
    std::int64_t first = 0, rows = 0;  // of the weight's rows on this rank
    LowRank added = nullptr;
  };
  std::vector<Adapter> adapters;

 private:
  bool divides(ProjectionSplit what) const;
  nn::ParameterSlice slice() const;
  void make_weight(const Drawn& drawn, double deviation);
  void adapt(const std::string& target, const std::string& name, std::size_t first_part,
             std::size_t part_count, const Drawn& drawn);
  LowRankImpl::Slices adapter_slices(std::size_t first_part, std::size_t part_count) const;
  bool is_matrix_for(const at::Tensor& x) const;
  at::Tensor own_product(const at::Tensor& x, const at::Tensor& added);
  at::Tensor whole(const at::Tensor& x);
  at::Tensor columns(const at::Tensor& x, std::int64_t tokens);
  at::Tensor row_sum(const at::Tensor& x, std::int64_t tokens);
};
TORCH_MODULE(Projection);

// The number of rows of all parts.
std::int64_t rows_of(const ProjectionOptions& options);

}  // namespace trestle::models
