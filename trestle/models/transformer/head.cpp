#include "trestle/models/transformer/head.h"

#include <ATen/ops/empty.h>

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
  const at::Tensor scores = product(x, weight);
  return weight.size(0) == vocabulary ? scores : scores.narrow(-1, 0, vocabulary);
}

}  // namespace trestle::models
