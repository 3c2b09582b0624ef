#include "trestle/models/transformer/projection.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

#include "trestle/nn/draw.h"

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
  adapt(options.target, "lora", {0, rows}, drawn);
  for (std::size_t i = 0; i < parts.size(); ++i)
    adapt(options.parts[i].target, "lora_" + options.parts[i].name, parts[i], drawn);
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
    made = to_int8_rows(draw_normal(exact, "weight", own, deviation));
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

void ProjectionImpl::adapt(const std::string& target, const std::string& name,
                           const nn::IndexRange& rows, const Drawn& drawn) {
  const auto& targets = options.adapters.targets;
  if (target.empty() || std::find(targets.begin(), targets.end(), target) == targets.end()) return;
  adapters.push_back({rows.begin, rows.size,
                      register_module(name, LowRank(options.adapters, options.inputs, rows.size,
                                                    drawn.of(name)))});
}

// Without other ranks. A model of several ranks has trained weights of one type (transformer()).
at::Tensor ProjectionImpl::whole(const at::Tensor& x) {
  at::Tensor y =
      scales.defined() ? product(x, Int8Rows{weight, scales}, bias) : product(x, weight, bias);
  for (Adapter& adapter : adapters) {
    const at::Tensor added = adapter.added->forward(x);
    if (adapters.size() == 1 && adapter.rows == y.size(-1)) return y + added;
    y.narrow(-1, adapter.first, adapter.rows).add_(added);
  }
  return y;
}

at::Tensor ProjectionImpl::forward(const at::Tensor& x, std::int64_t tokens) {
  const auto shards = tokens > 0 ? options.tensor.shards(tokens) : std::nullopt;
  const auto& ranks = options.tensor.ranks;
  if (divides(ProjectionSplit::Columns))
    return tensor_parallel::column_product(ranks, x, weight, bias, shards);
  if (divides(ProjectionSplit::Rows))
    return tensor_parallel::row_product(ranks, x, weight, bias, shards);
  return whole(x);
}

}  // namespace trestle::models
