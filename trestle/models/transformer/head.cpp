#include "trestle/models/transformer/head.h"

#include <ATen/ops/empty.h>

#include "trestle/models/transformer/int8_rows.h"
#include "trestle/models/transformer/product.h"

namespace trestle::models {

HeadImpl::HeadImpl(const TransformerConfig& config, const Drawn& drawn)
    : vocabulary(config.vocabulary) {
  // A tied weight is replaced by the embedding's table: its memory is never touched.
  weight = register_parameter(
      "weight", config.tied_head ? at::empty({table_rows(config), config.width}, drawn.type)
                                 : draw_table(drawn, "weight", config));
}

at::Tensor HeadImpl::forward(const at::Tensor& x) {
  const at::Tensor scores =
      rows.defined() ? product(x, Int8Rows{rows, scales}) : product(x, weight);
  return scores.size(-1) == vocabulary ? scores : scores.narrow(-1, 0, vocabulary);
}

void HeadImpl::round_to_int8() {
  if (rows.defined()) return;
  const Int8Rows rounded = to_int8_rows(weight.detach().narrow(0, 0, vocabulary));
  rows = register_buffer("rows", rounded.rows);
  scales = register_buffer("scales", rounded.scales);
}

}  // namespace trestle::models
