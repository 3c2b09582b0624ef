#include "trestle/sharding/unscale.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cmath>

#include "trestle/optim/gradient_norms.h"

namespace trestle {

UnscaledGradients unscale(precision::GradientScaler& scaler, Sharded& sharded,
                          const UnscaleOptions& options) {
  const optim::ClipGradNormOptions clip = {.p = options.p};
  optim::check_clipping(options.max_norm, clip);
  std::vector<at::Tensor> own;
  for (const at::Tensor& parameter : sharded.parameters())
    if (parameter.numel() > 0) own.push_back(parameter);
  UnscaledGradients result{.finite = scaler.unscale(own)};
  const bool largest = std::isinf(options.p);
  double sum = 0;
  for (const auto& norm : optim::gradient_norms(own, options.p))
    sum = largest ? std::max(sum, norm.value) : sum + std::pow(norm.value, options.p);
  if (sharded.shard_ranks().valid()) {
    const at::Tensor all = at::empty({2}, at::kDouble);
    auto* values = all.mutable_data_ptr<double>();
    values[0] = result.finite ? 0 : 1;
    values[1] = result.finite ? sum : 0;
    sharded.shard_ranks().all_reduce(all, largest ? comm::Reduce::Max : comm::Reduce::Sum).wait();
    result.finite = values[0] == 0;
    sum = values[1];
  }
  if (!result.finite) {
    scaler.note_overflow();
    result.norm = std::nan("");
    return result;
  }
  result.norm = largest ? sum : std::pow(sum, 1 / options.p);
  if (options.max_norm > 0)
    optim::clip_by(own, {{.value = result.norm, .dtype = at::kDouble}}, options.max_norm, clip);
  return result;
}

}  // namespace trestle
