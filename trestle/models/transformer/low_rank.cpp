#include "trestle/models/transformer/low_rank.h"

#include <ATen/ops/zeros.h>
#include <c10/core/InferenceMode.h>

#include <cmath>

#include "trestle/models/transformer/product.h"
#include "trestle/nn/draw.h"
#include "trestle/nn/keyed_dropout.h"

namespace trestle::models {

LowRankImpl::LowRankImpl(const LowRankOptions& options, std::int64_t inputs, std::int64_t rows,
                         const Drawn& drawn)
    : scale(options.alpha / static_cast<double>(options.rank)), dropout(options.dropout) {
  // PEFT's: kaiming_uniform_ with a = sqrt(5), which is uniform in +-1 / sqrt(inputs).
  const Drawn exact{drawn.seed, drawn.module, drawn.weights};  // fp32
  a = register_parameter("a", draw_uniform(exact, "a", nn::whole_parameter({options.rank, inputs}),
                                           1 / std::sqrt(static_cast<double>(inputs))));
  b = register_parameter("b", at::zeros({rows, options.rank}));
}

at::Tensor LowRankImpl::forward(const at::Tensor& x) {
  // A text is written without dropout, like that of the rest of the model, in each mode.
  const bool drops = is_training() && !c10::InferenceMode::is_enabled();
  return product(product(nn::keyed_dropout(x, dropout, drops), a), b) * scale;
}

}  // namespace trestle::models
