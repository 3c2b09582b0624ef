#include "trestle/models/transformer/embedding.h"

#include <ATen/ops/arange.h>
#include <ATen/ops/embedding.h>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/nn/keyed_dropout.h"

namespace trestle::models {

namespace {

void check_range(const at::Tensor& ids, std::int64_t vocabulary) {
  if (ids.numel() == 0) return;
  const at::Tensor on_cpu = ids.to(at::kCPU).contiguous();
  const auto* const values = on_cpu.const_data_ptr<std::int64_t>();
  for (std::int64_t i = 0; i < on_cpu.numel(); ++i) {
    if (values[i] >= 0 && values[i] < vocabulary) continue;
    throw UsageError(
        text("token id ", values[i], " in row ", i / ids.size(1), ", column ", i % ids.size(1),
             " is out of range: the model has the ids 0 to ", vocabulary - 1),
        {.hint = "Prepare the text with the model's tokenizer."});
  }
}

}  // namespace

TokenEmbeddingImpl::TokenEmbeddingImpl(const TransformerConfig& given, const Drawn& drawn,
                                       at::ScalarType output)
    : config(given), type(output) {
  tokens = register_parameter(
      "tokens",
      draw_normal(drawn, "tokens", {config.vocabulary, config.width}, config.initial_deviation));
  if (config.style != TransformerConfig::Style::Gpt2) return;
  positions = register_parameter(
      "positions",
      draw_normal(drawn, "positions", {config.context, config.width}, config.initial_deviation));
}

at::Tensor TokenEmbeddingImpl::at(const at::Tensor& ids, const at::Tensor& positions_of_ids) {
  const at::Tensor x = at::embedding(tokens, ids).to(type);
  return positions.defined() ? x + at::embedding(positions, positions_of_ids).to(type) : x;
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
  const std::int64_t count = ids.size(1);
  if (count > config.context)
    throw UsageError(
        text("a row has ", count, " tokens, more than the model's context of ", config.context),
        {.hint = "Cut the text, or use a model with a longer context."});
  check_range(ids, config.vocabulary);
  const at::Tensor x = at(ids, placed ? places.clamp_min(0) : at::arange(count, ids.options()));
  return {nn::keyed_dropout(x, config.dropout.embedding, is_training()), places};
}

}  // namespace trestle::models
