#include "trestle/models/transformer/projection.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <utility>

namespace trestle::models {

std::int64_t rows_of(const ProjectionOptions& options) {
  std::int64_t rows = 0;
  for (const ProjectionPart& part : options.parts) rows += part.rows;
  return rows;
}

ProjectionImpl::ProjectionImpl(ProjectionOptions given, const Drawn& drawn, double deviation)
    : options(std::move(given)) {
  const std::int64_t rows = rows_of(options);
  make_weight(drawn, deviation);
  if (options.bias == Bias::Added)
    bias = register_parameter("bias",
                              at::zeros({rows}, drawn.type == at::kChar ? at::kFloat : drawn.type));
  if (!options.adapters.any()) return;
  weight.set_requires_grad(false);
  if (bias.defined()) bias.set_requires_grad(false);
  adapt(options.target, "lora", 0, rows, drawn);
  std::int64_t first = 0;
  for (const ProjectionPart& part : options.parts) {
    adapt(part.target, "lora_" + part.name, first, part.rows, drawn);
    first += part.rows;
  }
}

void ProjectionImpl::make_weight(const Drawn& drawn, double deviation) {
  const std::int64_t rows = rows_of(options);
  if (drawn.type != at::kChar) {
    weight = register_parameter("weight",
                                draw_normal(drawn, "weight", {rows, options.inputs}, deviation));
    return;
  }
  Int8Rows made{at::empty({rows, options.inputs}, at::kChar), at::empty({rows})};
  if (drawn.weights == InitialWeights::Drawn) {
    const Drawn exact{drawn.seed, drawn.module};  // fp32
    made = to_int8_rows(draw_normal(exact, "weight", {rows, options.inputs}, deviation));
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

void ProjectionImpl::adapt(const std::string& target, const std::string& name, std::int64_t first,
                           std::int64_t rows, const Drawn& drawn) {
  const auto& targets = options.adapters.targets;
  if (target.empty() || std::find(targets.begin(), targets.end(), target) == targets.end()) return;
  adapters.push_back(
      {first, rows,
       register_module(name, LowRank(options.adapters, options.inputs, rows, drawn.of(name)))});
}

at::Tensor ProjectionImpl::forward(const at::Tensor& x) {
  at::Tensor y =
      scales.defined() ? product(x, Int8Rows{weight, scales}, bias) : product(x, weight, bias);
  for (Adapter& adapter : adapters) {
    const at::Tensor added = adapter.added->forward(x);
    if (adapters.size() == 1 && adapter.rows == y.size(-1)) return y + added;
    y.narrow(-1, adapter.first, adapter.rows).add_(added);
  }
  return y;
}

}  // namespace trestle::models
