#include "trestle/models/transformer/projection.h"

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
  weight =
      register_parameter("weight", draw_normal(drawn, "weight", {rows, options.inputs}, deviation));
  if (options.bias == Bias::Added) bias = register_parameter("bias", at::zeros({rows}, drawn.type));
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

void ProjectionImpl::adapt(const std::string& target, const std::string& name, std::int64_t first,
                           std::int64_t rows, const Drawn& drawn) {
  const auto& targets = options.adapters.targets;
  if (target.empty() || std::find(targets.begin(), targets.end(), target) == targets.end()) return;
  adapters.push_back(
      {first, rows,
       register_module(name, LowRank(options.adapters, options.inputs, rows, drawn.of(name)))});
}

at::Tensor ProjectionImpl::forward(const at::Tensor& x) {
  at::Tensor y = product(x, weight, bias);
  for (Adapter& adapter : adapters) {
    const at::Tensor added = adapter.added->forward(x);
    if (adapters.size() == 1 && adapter.rows == y.size(-1)) return y + added;
    y.narrow(-1, adapter.first, adapter.rows).add_(added);
  }
  return y;
}

}  // namespace trestle::models
