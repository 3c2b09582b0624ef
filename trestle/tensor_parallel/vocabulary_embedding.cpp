#include "trestle/tensor_parallel/vocabulary_embedding.h"

#include <ATen/ops/embedding.h>

#include <ostream>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/nn/draw.h"
#include "trestle/tensor_parallel/operators.h"
#include "trestle/tensor_parallel/own_slice.h"
#include "trestle/tensor_parallel/vocabulary_lookup.h"

namespace trestle::tensor_parallel {

namespace {

nn::ParameterSlice table_slice(const VocabularyEmbeddingImpl& layer) {
  return own_slice(layer.ranks, {layer.rows, layer.width}, 0, {}, "rows");
}

void check_ids(const at::Tensor& ids, const VocabularyEmbeddingImpl& layer) {
  if (ids.scalar_type() != at::kLong)
    throw UsageError(text("it takes ids in int64; got ", c10::toString(ids.scalar_type()), " [",
                          join(ids.sizes(), ", "), "]"));
  refuse_ids_outside(ids, layer.rows);
  const auto& shards = layer.options.shards;
  if (!shards) return;
  const bool exists = shards->dimension >= 0 && shards->dimension < ids.dim();
  if (exists && (shards->tokens == 0 || shards->tokens == ids.size(shards->dimension))) return;
  throw UsageError(text("it takes ids of all ", shards->tokens, " tokens in dimension ",
                        shards->dimension, "; got [", join(ids.sizes(), ", "), "]"));
}

}  // namespace

VocabularyEmbeddingImpl::VocabularyEmbeddingImpl(TensorRanks given, std::int64_t of_table,
                                                 std::int64_t features,
                                                 VocabularyEmbeddingOptions chosen)
    : ranks(std::move(given)), rows(of_table), width(features), options(chosen) {
  const CounterRandom random(options.seed, ranks.layer() + ".weight");
  weight =
      register_parameter("weight", nn::draw_normal(random, table_slice(*this), 1).to(options.type));
}

at::Tensor VocabularyEmbeddingImpl::forward(const at::Tensor& ids) {
  return in_layer(ranks, [&] {
    check_ids(ids, *this);
    if (ranks.alone()) return at::embedding(weight, ids);
    const Partial own(look_up_own(ids, ranks.own(rows), [&](const at::Tensor& numbers) {
      return at::embedding(weight, numbers);
    }));
    if (!options.shards) return reduce(ranks, own).tensor;
    return reduce_scatter(ranks, own, options.shards->dimension).tensor;
  });
}

nn::ParameterSlices VocabularyEmbeddingImpl::parameter_slices() const {
  if (ranks.alone()) return {};
  return {{"weight", table_slice(*this)}};
}

void VocabularyEmbeddingImpl::pretty_print(std::ostream& stream) const {
  stream << "trestle::tensor_parallel::VocabularyEmbedding(rows="
         << words_of_share(weight.size(0), rows) << ", width=" << width << ")";
}

}  // namespace trestle::tensor_parallel
