#include "trestle/models/transformer/embedding.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>
#include <ATen/ops/empty.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/nn/draw.h"
#include "trestle/nn/keyed_dropout.h"
#include "trestle/tensor_parallel/operators.h"
#include "trestle/tensor_parallel/vocabulary_lookup.h"

namespace trestle::models {

namespace {

// `least` is the smallest valid number, and `end` is above the largest.
template <class Describe>
void check_range(const at::Tensor& ids, std::int64_t least, std::int64_t end,
                 const Describe& describe) {
  if (ids.numel() == 0) return;
  const at::Tensor on_cpu = ids.to(at::kCPU).contiguous();
  const auto* const values = on_cpu.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < on_cpu.numel(); ++i) {
    if (values[i] < least || values[i] >= end)
      throw describe(values[i], text("in row ", i / ids.size(1), ", column ", i % ids.size(1)));
  }
}

void check_ids(const at::Tensor& ids, std::int64_t vocabulary) {
  check_range(ids, 0, vocabulary, [&](std::int64_t id, const std::string& where) {
    return UsageError(text("token id ", id, " ", where,
                           " is out of range: the model has the ids 0 to ", vocabulary - 1),
                      {.hint = "Prepare the text with the model's tokenizer."});
  });
}

void check_places(const at::Tensor& places, std::int64_t context) {
  check_range(places, -1, context, [&](std::int64_t place, const std::string& where) {
    return UsageError(text("place ", place, " ", where,
                           " is out of range: a document has the places 0 to ", context - 1,
                           ", and -1 is padding"));
  });
}

}  // namespace

TokenEmbeddingImpl::TokenEmbeddingImpl(const TransformerConfig& given, const Drawn& drawn,
                                       at::ScalarType output, const TensorSplit& split)
    : config(given),
      tensor(split.of("embed")),
      rows(tensor.ranks.own(table_rows(given))),
      type(output),
      follows_weights(output == drawn.type) {
  tokens = register_parameter("tokens", draw_table(drawn, "tokens", config, rows));
  if (config.style != TransformerConfig::Style::Gpt2) return;
  positions = register_parameter(
      "positions",
      draw_normal(drawn, "positions", nn::whole_parameter({config.context, config.width}),
                  config.initial_deviation));
}

nn::ParameterSlices TokenEmbeddingImpl::parameter_slices() const {
  if (tensor.ranks.alone()) return {};
  return {
      {"tokens", {.whole = {table_rows(config), config.width}, .dimension = 0, .ranges = {rows}}}};
}

at::Tensor TokenEmbeddingImpl::looked_up(const at::Tensor& ids) {
  const at::ScalarType to = follows_weights ? tokens.scalar_type() : type;
  if (tensor.ranks.alone()) return at::embedding(tokens, ids).to(to);
  return tensor_parallel::look_up_own(
             ids, rows, [&](const at::Tensor& numbers) { return at::embedding(tokens, numbers); })
      .to(to);
}

at::Tensor TokenEmbeddingImpl::at(const at::Tensor& ids, const at::Tensor& positions_of_ids) {
  using tensor_parallel::Partial, tensor_parallel::reduce;
  const at::Tensor x = reduce(tensor.ranks, Partial(looked_up(ids))).tensor;
  return positions.defined() ? x + at::embedding(positions, positions_of_ids).to(x.scalar_type())
                             : x;
}

// Learned positions are added before the tokens are divided, so that each rank has their whole
// gradient.
at::Tensor TokenEmbeddingImpl::on_shards(const at::Tensor& ids,
                                         const at::Tensor& positions_of_ids) {
  using tensor_parallel::Partial, tensor_parallel::Replicated;
  if (positions.defined())
    return tensor_parallel::scatter(tensor.ranks, Replicated(at(ids, positions_of_ids)), 1).tensor;
  return tensor_parallel::reduce_scatter(tensor.ranks, Partial(looked_up(ids)), 1).tensor;
}

std::tuple<at::Tensor, at::Tensor> TokenEmbeddingImpl::forward(const at::Tensor& given) {
  if (given.scalar_type() != at::kLong || (given.dim() != 2 && given.dim() != 3) ||
      (given.dim() == 3 && given.size(2) != 2))
    throw UsageError(text("a transformer takes int64 ids [N, T], or [N, T, 2] with places; got ",
                          c10::toString(given.scalar_type()), " [", join(given.sizes(), ", "),
                          "]"));
  const bool placed = given.dim() == 3;
  const at::Tensor ids = placed ? given.select(2, 0) : given;
  const at::Tensor places = placed ? given.select(2, 1).contiguous() : at::Tensor();
  const std::int64_t first = placed ? 0 : tokens_so_far.value_or(0), end = first + ids.size(1);
  if (end > config.context)
    throw UsageError(
        text("a row has ", end, " tokens, more than the model's context of ", config.context),
        {.hint = "Cut the text, or use a model with a longer context."});
  if (ids.numel() == 0)
    throw UsageError(
        text("a transformer takes rows with tokens; got int64 [", join(given.sizes(), ", "), "]"));
  check_ids(ids, config.vocabulary);
  if (placed) check_places(places, config.context);
  const at::Tensor positions_of_ids =
      placed ? places.clamp_min(0) : at::arange(first, end, ids.options());
  if (tensor.shards_tokens() && !tokens_so_far) {
    const at::Tensor own =
        nn::keyed_dropout(on_shards(ids, positions_of_ids), config.dropout.embedding, is_training(),
                          tensor.dropout_slice(ids.size(1)));
    return {own, placed ? places : at::empty({0, ids.size(1)}, ids.options())};
  }
  const at::Tensor x = at(ids, positions_of_ids);
  if (!placed && tokens_so_far) tokens_so_far = end;
  return {nn::keyed_dropout(x, config.dropout.embedding, is_training()), places};
}

}  // namespace trestle::models
