#include "trestle/models/transformer/low_rank.h"

#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <cmath>
#include <utility>

#include "trestle/models/transformer/product.h"
#include "trestle/nn/draw.h"

namespace trestle::models {

LowRankImpl::LowRankImpl(const LowRankOptions& options, Slices slices, const Drawn& drawn)
    : scale(options.alpha / static_cast<double>(options.rank)),
      dropout(options.dropout),
      slices_(std::move(slices)) {
  // PEFT's: kaiming_uniform_ with a = sqrt(5), which is uniform in +-1 / sqrt(inputs).
  const Drawn exact{drawn.seed, drawn.module, drawn.weights};  // fp32
  const double bound = 1 / std::sqrt(static_cast<double>(slices_.a.whole[1]));
  a = register_parameter("a", draw_uniform(exact, "a", slices_.a, bound));
  b = register_parameter("b", at::zeros(slices_.b.shape()));
}

nn::ParameterSlices LowRankImpl::parameter_slices() const {
  nn::ParameterSlices slices;
  if (slices_.a.shape() != slices_.a.whole) slices["a"] = slices_.a;
  if (slices_.b.shape() != slices_.b.whole) slices["b"] = slices_.b;
  return slices;
}

at::Tensor LowRankImpl::inner(const at::Tensor& x, const at::Tensor& of_a,
                              const std::optional<nn::DropoutSlice>& slice) {
  // A text is written without dropout, like that of the rest of the model, in each mode.
  const bool drops = is_training() && !c10::InferenceMode::is_enabled();
  return product(nn::keyed_dropout(x, dropout, drops, slice), of_a);
}

at::Tensor LowRankImpl::outer(const at::Tensor& inner, const at::Tensor& of_b) const {
  return product(inner, of_b) * scale;
}

at::Tensor LowRankImpl::forward(const at::Tensor& x) { return outer(inner(x, a), b); }

}  // namespace trestle::models
