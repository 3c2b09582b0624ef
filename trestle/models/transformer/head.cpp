#include "trestle/models/transformer/head.h"

#include <ATen/ops/empty.h>

#include <algorithm>

#include "trestle/models/transformer/int8_rows.h"
#include "trestle/models/transformer/product.h"
#include "trestle/tensor_parallel/linear.h"
#include "trestle/tensor_parallel/operators.h"

namespace trestle::models {

HeadImpl::HeadImpl(const TransformerConfig& config, const Drawn& drawn, const TensorSplit& tensor,
                   SplitScores scores)
    : vocabulary(config.vocabulary),
      split_scores(scores),
      tensor_(tensor.of("head")),
      slice_{.whole = {table_rows(config), config.width},
             .dimension = 0,
             .ranges = {tensor.ranks.own(table_rows(config))}} {
  // A tied weight is replaced by the embedding's table: its memory is never touched.
  weight = register_parameter(
      "weight", config.tied_head ? at::empty(slice_.shape(), drawn.type)
                                 : draw_table(drawn, "weight", config, slice_.ranges[0]));
}

nn::ParameterSlices HeadImpl::parameter_slices() const {
  if (tensor_.ranks.alone()) return {};
  return {{"weight", slice_}};
}

at::Tensor HeadImpl::own_scores(const at::Tensor& x, std::int64_t tokens) {
  const auto multiplied = [&](const at::Tensor& all) {
    return rows.defined() ? product(all, Int8Rows{rows, scales}) : product(all, weight);
  };
  if (tensor_.ranks.alone()) return multiplied(x);
  const auto shards = tokens > 0 ? tensor_.shards(tokens) : std::nullopt;
  if (!rows.defined() && !casts(x, weight))
    return tensor_parallel::column_product(tensor_.ranks, x, weight, {}, shards);
  return multiplied(tensor_parallel::column_input(tensor_.ranks, x, shards));
}

at::Tensor HeadImpl::forward(const at::Tensor& x, std::optional<at::Tensor> places) {
  using tensor_parallel::Sharded;
  at::Tensor scores = own_scores(x, places && places->defined() ? places->size(1) : 0);
  const nn::IndexRange own = slice_.ranges[0];
  const bool joins = split_scores == SplitScores::Joined || !is_training();
  if (!tensor_.ranks.alone() && joins) {
    scores = tensor_parallel::gather(tensor_.ranks, Sharded(scores, -1, slice_.whole[0])).tensor;
    return scores.size(-1) == vocabulary ? scores : scores.narrow(-1, 0, vocabulary);
  }
  const std::int64_t true_rows = std::clamp<std::int64_t>(vocabulary - own.begin, 0, own.size);
  return scores.size(-1) == true_rows ? scores : scores.narrow(-1, 0, true_rows);
}

void HeadImpl::round_to_int8() {
  if (rows.defined()) return;
  // The ranks of several gather their padded rows too.
  const at::Tensor used = tensor_.ranks.alone() ? weight.narrow(0, 0, vocabulary) : weight;
  const Int8Rows rounded = to_int8_rows(used.detach());
  rows = register_buffer("rows", rounded.rows);
  scales = register_buffer("scales", rounded.scales);
}

}  // namespace trestle::models
