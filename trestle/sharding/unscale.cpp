#include "trestle/sharding/unscale.h"

#include <ATen/Functions.h>

#include <cmath>

#include "trestle/optim/gradient_norms.h"
#include "trestle/sharding/norm_over_ranks.h"

namespace trestle {

UnscaledGradients unscale(precision::GradientScaler& scaler, Sharded& sharded,
                          const UnscaleOptions& options) {
  const optim::ClipGradNormOptions clip = {.p = options.p};
  optim::check_clipping(options.max_norm, clip);
  const sharding::PartialNorm partial{options.p};
  const std::vector<at::Tensor> own = sharded.parameters();
  UnscaledGradients result{.finite = scaler.unscale(own)};
  double whole = partial.of(own);
  if (sharded.shard_ranks().valid()) {
    const at::Tensor all = at::empty({2}, at::kDouble);
    auto* values = all.mutable_data_ptr<double>();
    values[0] = result.finite ? 0 : 1;
    values[1] = result.finite ? whole : 0;
    sharded.shard_ranks().all_reduce(all, partial.reduction()).wait();
    result.finite = values[0] == 0;
    whole = values[1];
  }
  if (!result.finite) {
    scaler.note_overflow();
    result.norm = std::nan("");
    return result;
  }
  result.norm = partial.norm(whole);
  if (options.max_norm > 0)
    optim::clip_by(own, {{.value = result.norm, .dtype = at::kDouble}}, options.max_norm, clip);
  return result;
}

}  // namespace trestle
