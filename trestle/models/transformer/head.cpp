#include "trestle/models/transformer/head.h"

#include <ATen/ops/empty.h>

#include "trestle/models/transformer/int8_rows.h"
#include "trestle/models/transformer/product.h"

namespace trestle::models {

HeadImpl::HeadImpl(const TransformerConfig& config, const Drawn& drawn) {
  // A tied weight is replaced by the embedding's table: its memory is never touched.
  weight = register_parameter(
      "weight", config.tied_head ? at::empty({config.vocabulary, config.width}, drawn.type)
                                 : draw_normal(drawn, "weight", {config.vocabulary, config.width},
                                               config.initial_deviation));
}

at::Tensor HeadImpl::forward(const at::Tensor& x) {
  return rows.defined() ? product(x, Int8Rows{rows, scales}) : product(x, weight);
}

void HeadImpl::round_to_int8() {
  const Int8Rows rounded = to_int8_rows(weight.detach());
  rows = register_buffer("rows", rounded.rows);
  scales = register_buffer("scales", rounded.scales);
}

}  // namespace trestle::models
