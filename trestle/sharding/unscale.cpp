#include "trestle/sharding/unscale.h"

#include <ATen/Functions.h>

#include <cmath>

#include "trestle/comm/purpose.h"
#include "trestle/gradient_norm/sharded_norm.h"
#include "trestle/optim/gradient_norms.h"
#include "trestle/sharding/options/reproducible.h"

namespace trestle {

namespace {

UnscaledGradients finish(precision::GradientScaler& scaler, const std::vector<at::Tensor>& own,
                         const UnscaleOptions& options, UnscaledGradients result) {
  if (!result.finite) {
    scaler.note_overflow();
    result.norm = std::nan("");
  } else if (options.max_norm > 0) {
    optim::clip_by(own, {{.value = result.norm, .dtype = at::kDouble}}, options.max_norm,
                   {.p = options.p});
  }
  return result;
}

}  // namespace

UnscaledGradients unscale(precision::GradientScaler& scaler, Sharded& sharded,
                          const UnscaleOptions& options) {
  sharded.refuse_slices("unscale()");
  optim::check_clipping(options.max_norm, {.p = options.p});
  const gradient_norm::PowerSum partial{options.p};
  const std::vector<at::Tensor> own = sharded.parameters();
  UnscaledGradients result{.finite = scaler.unscale(own)};
  if (sharded.options().reproducible.micro_batches > 0) {
    result.norm = sharding::exact_norm(own, sharded.shard_ranks(), options.p);
    result.finite = std::isfinite(result.norm);
    return finish(scaler, own, options, result);
  }
  double whole = partial.of(own);
  if (sharded.shard_ranks().valid()) {
    const at::Tensor all = at::empty({2}, at::kDouble);
    auto* values = all.mutable_data_ptr<double>();
    values[0] = result.finite ? 0 : 1;
    values[1] = result.finite ? whole : 0;
    comm::with_purpose([] { return "while the ranks added up the norm of the unscaled gradients"; },
                       [&] { sharded.shard_ranks().all_reduce(all, partial.reduction()).wait(); });
    result.finite = values[0] == 0;
    whole = values[1];
  }
  result.norm = partial.norm(whole);
  return finish(scaler, own, options, result);
}

}  // namespace trestle
