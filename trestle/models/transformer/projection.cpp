#include "trestle/models/transformer/projection.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "trestle/nn/draw.h"
#include "trestle/nn/keyed_dropout.h"
#include "trestle/tensor_parallel/linear.h"
#include "trestle/tensor_parallel/operators.h"

namespace trestle::models {

std::int64_t rows_of(const ProjectionOptions& options) {
  std::int64_t rows = 0;
  for (const ProjectionPart& part : options.parts) rows += part.rows;
  return rows;
}

bool ProjectionImpl::divides(ProjectionSplit what) const {
  return options.split == what && !options.tensor.ranks.alone();
}

nn::ParameterSlice ProjectionImpl::slice() const {
  nn::ParameterSlice own = nn::whole_parameter({rows_of(options), options.inputs});
  const auto& ranks = options.tensor.ranks;
  if (divides(ProjectionSplit::Rows)) {
    own.dimension = 1;
    own.ranges = {ranks.own(options.inputs)};
  } else if (divides(ProjectionSplit::Columns)) {
    own.ranges.clear();
    std::int64_t first = 0;
    for (const ProjectionPart& part : options.parts) {
      const nn::IndexRange range = ranks.own(part.rows);
      own.ranges.push_back({first + range.begin, range.size});
      first += part.rows;
    }
  }
  return own;
}

nn::ParameterSlices ProjectionImpl::parameter_slices() const {
  nn::ParameterSlices slices;
  if (divides(ProjectionSplit::Rows)) slices["weight"] = slice();
  if (!divides(ProjectionSplit::Columns)) return slices;
  slices["weight"] = slice();
  const nn::ParameterSlice of_rows{
      .whole = {rows_of(options)}, .dimension = 0, .ranges = slice().ranges};
  if (bias.defined()) slices["bias"] = of_rows;
  if (scales.defined()) slices["scales"] = of_rows;
  return slices;
}

ProjectionImpl::ProjectionImpl(ProjectionOptions given, const Drawn& drawn, double deviation)
    : options(std::move(given)) {
  std::int64_t rows = 0;
  for (const ProjectionPart& part : options.parts) {
    const std::int64_t own =
        divides(ProjectionSplit::Columns) ? options.tensor.ranks.own(part.rows).size : part.rows;
    parts.push_back({rows, own});
    rows += own;
  }
  make_weight(drawn, deviation);
  if (options.bias == Bias::Added)
    bias = register_parameter("bias",
                              at::zeros({rows}, drawn.type == at::kChar ? at::kFloat : drawn.type));
  if (!options.adapters.any()) return;
  weight.set_requires_grad(false);
  if (bias.defined()) bias.set_requires_grad(false);
  adapt(options.target, "lora", 0, parts.size(), drawn);
  for (std::size_t i = 0; i < parts.size(); ++i)
    adapt(options.parts[i].target, "lora_" + options.parts[i].name, i, 1, drawn);
}

void ProjectionImpl::make_weight(const Drawn& drawn, double deviation) {
  const nn::ParameterSlice own = slice();
  if (drawn.type != at::kChar) {
    weight = register_parameter("weight", draw_normal(drawn, "weight", own, deviation));
    return;
  }
  Int8Rows made{at::empty(own.shape(), at::kChar), at::empty({own.shape()[0]})};
  if (drawn.weights == InitialWeights::Drawn) {
    const Drawn exact{drawn.seed, drawn.module};  // fp32
    const bool shares_rows = divides(ProjectionSplit::Rows);
    const nn::ParameterSlice rounded = shares_rows ? nn::whole_parameter(own.whole) : own;
    made = to_int8_rows(draw_normal(exact, "weight", rounded, deviation));
    if (shares_rows)
      made.rows = made.rows.narrow(1, own.ranges[0].begin, own.ranges[0].size).contiguous();
  }
  weight = register_parameter("weight", made.rows, /*requires_grad=*/false);
  scales = register_parameter("scales", made.scales, /*requires_grad=*/false);
}

void ProjectionImpl::dequantise() {
  if (!scales.defined()) return;
  const at::NoGradGuard no_grad;
  weight.set_data(from_int8_rows({weight, scales}, at::kFloat));
  parameters_.erase("scales");
  scales.reset();
}

LowRankImpl::Slices ProjectionImpl::adapter_slices(std::size_t first_part,
                                                   std::size_t part_count) const {
  std::int64_t before = 0, rows = 0;
  for (std::size_t i = 0; i < first_part; ++i) before += options.parts[i].rows;
  for (std::size_t i = first_part; i < first_part + part_count; ++i) rows += options.parts[i].rows;
  const std::int64_t rank = options.adapters.rank;
  LowRankImpl::Slices slices{.a = nn::whole_parameter({rank, options.inputs}),
                             .b = nn::whole_parameter({rows, rank})};
  const nn::ParameterSlice own = slice();
  if (divides(ProjectionSplit::Rows)) {
    slices.a.dimension = 1;
    slices.a.ranges = own.ranges;
  } else if (divides(ProjectionSplit::Columns)) {
    slices.b.ranges.clear();
    for (std::size_t i = first_part; i < first_part + part_count; ++i)
      slices.b.ranges.push_back({own.ranges[i].begin - before, own.ranges[i].size});
  }
  return slices;
}

void ProjectionImpl::adapt(const std::string& target, const std::string& name,
                           std::size_t first_part, std::size_t part_count, const Drawn& drawn) {
  const auto& targets = options.adapters.targets;
  if (target.empty() || std::find(targets.begin(), targets.end(), target) == targets.end()) return;
  Adapter adapter{.first = parts[first_part].begin};
  for (std::size_t i = first_part; i < first_part + part_count; ++i) adapter.rows += parts[i].size;
  adapter.added = register_module(
      name, LowRank(options.adapters, adapter_slices(first_part, part_count), drawn.of(name)));
  adapters.push_back(adapter);
}

bool ProjectionImpl::is_matrix_for(const at::Tensor& x) const {
  return !scales.defined() && !casts(x, weight);
}

// By this rank's weight.
at::Tensor ProjectionImpl::own_product(const at::Tensor& x, const at::Tensor& added) {
  return scales.defined() ? product(x, Int8Rows{weight, scales}, added) : product(x, weight, added);
}

namespace {

// y plus the term of each adapter, in its rows.
template <class Term>
at::Tensor with_terms(const at::Tensor& y, std::vector<ProjectionImpl::Adapter>& adapters,
                      const Term& term_of) {
  for (std::size_t i = 0; i < adapters.size(); ++i) {
    const at::Tensor term = term_of(i, *adapters[i].added);
    if (adapters.size() == 1 && adapters[i].rows == y.size(-1)) return y + term;
    y.narrow(-1, adapters[i].first, adapters[i].rows).add_(term);
  }
  return y;
}

}  // namespace

// Without other ranks.
at::Tensor ProjectionImpl::whole(const at::Tensor& x) {
  return with_terms(own_product(x, bias), adapters,
                    [&](std::size_t, LowRankImpl& added) { return added.forward(x); });
}

at::Tensor ProjectionImpl::columns(const at::Tensor& x, std::int64_t tokens) {
  const auto& ranks = options.tensor.ranks;
  const auto shards = tokens > 0 ? options.tensor.shards(tokens) : std::nullopt;
  const at::Tensor y = is_matrix_for(x)
                           ? tensor_parallel::column_product(ranks, x, weight, bias, shards)
                           : own_product(tensor_parallel::column_input(ranks, x, shards), bias);
  if (adapters.empty()) return y;
  std::vector<at::Tensor> of_a, inner;
  for (const Adapter& adapter : adapters) of_a.push_back(adapter.added->a);
  if (shards) of_a = tensor_parallel::branch_parameters(ranks, of_a);
  const auto slice = shards ? options.tensor.dropout_slice(tokens) : std::nullopt;
  for (std::size_t i = 0; i < adapters.size(); ++i)
    inner.push_back(adapters[i].added->inner(x, of_a[i], slice));
  const at::Tensor all = tensor_parallel::column_input(ranks, at::cat(inner, -1), shards);
  const std::int64_t rank = options.adapters.rank;
  return with_terms(y, adapters, [&](std::size_t i, const LowRankImpl& added) {
    return added.outer(all.narrow(-1, static_cast<std::int64_t>(i) * rank, rank), added.b);
  });
}

at::Tensor ProjectionImpl::row_sum(const at::Tensor& x, std::int64_t tokens) {
  const auto& ranks = options.tensor.ranks;
  const auto shards = tokens > 0 ? options.tensor.shards(tokens) : std::nullopt;
  if (adapters.empty() && is_matrix_for(x))
    return tensor_parallel::row_product(ranks, x, weight, bias, shards);
  const auto for_all_ranks = [&](const at::Tensor& parameter) {
    return tensor_parallel::branch_parameters(ranks, {parameter})[0];
  };
  const nn::DropoutSlice slice{
      .dimension = x.dim() - 1, .begin = ranks.own(options.inputs).begin, .whole = options.inputs};
  const at::Tensor own_term =
      with_terms(own_product(x, {}), adapters, [&](std::size_t, LowRankImpl& added) {
        return added.outer(added.inner(x, added.a, slice), for_all_ranks(added.b));
      });
  const at::Tensor y = tensor_parallel::row_output(ranks, own_term, shards);
  if (!bias.defined()) return y;
  return y + (shards ? for_all_ranks(bias) : bias).to(y.scalar_type());
}

at::Tensor ProjectionImpl::forward(const at::Tensor& x, std::int64_t tokens) {
  if (divides(ProjectionSplit::Columns)) return columns(x, tokens);
  if (divides(ProjectionSplit::Rows)) return row_sum(x, tokens);
  return whole(x);
}

}  // namespace trestle::models
