#include "trestle/models/transformer/projection.h"

#include <ATen/ops/linear.h>
#include <ATen/ops/zeros.h>

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
  if (options.bias == Bias::Added) bias = register_parameter("bias", at::zeros({rows}));
}

at::Tensor ProjectionImpl::forward(const at::Tensor& x) { return at::linear(x, weight, bias); }

}  // namespace trestle::models
