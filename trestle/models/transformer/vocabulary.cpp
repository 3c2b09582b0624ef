#include "trestle/models/transformer/vocabulary.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <string>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/models/transformer/embedding.h"

namespace trestle::models {

bool is_vocabulary_table(std::string_view parameter) {
  return parameter == "embed.tokens" || parameter == "head.weight";
}

NamedTensors first_rows(const NamedTensors& ours, std::int64_t rows) {
  NamedTensors views = ours;
  for (auto& [name, tensor] : views)
    if (is_vocabulary_table(name) && tensor.size(0) > rows)
      tensor = tensor.detach().narrow(0, 0, rows);
  return views;
}

void fill_new_rows(const TransformerConfig& config, const NamedTensors& ours, std::int64_t known) {
  if (known < 1 || known > config.vocabulary)
    throw UsageError(text("the rows of new tokens are those from ", known,
                          " on, and the model has ", config.vocabulary, " tokens"));
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : ours) {
    if (!is_vocabulary_table(name)) continue;
    const at::Tensor table = tensor.detach();
    at::Tensor sum = at::zeros({table.size(1)}, table.options().dtype(at::kDouble));
    constexpr std::int64_t chunk = 4096;  // rows that exist in double at once
    for (std::int64_t row = 0; row < known; row += chunk)
      sum += table.narrow(0, row, std::min(chunk, known - row)).sum(0, false, at::kDouble);
    table.narrow(0, known, config.vocabulary - known).copy_(sum / static_cast<double>(known));
  }
}

namespace {

// Dropout and the tokens that begin and end texts are no part of the layers' weights.
bool is_for(TransformerConfig own, const TransformerConfig& given) {
  own.dropout = given.dropout;
  own.begin_token = given.begin_token;
  own.end_tokens = given.end_tokens;
  return own == given;
}

}  // namespace

GrownTransformer grow_vocabulary(const nn::Layers& net, const TransformerConfig& config,
                                 std::int64_t vocabulary, const TransformerOptions& options) {
  if (vocabulary < config.vocabulary)
    throw UsageError(text("the model has ", config.vocabulary, " tokens and cannot have ",
                          vocabulary, ": rows of tokens are added, not removed"));
  if (options.adapters.any())
    throw UsageError(
        "the vocabulary of a model with adapters does not grow: its tables are frozen, "
        "and new rows would never be learned",
        {.hint = "Merge the adapters first (merge_adapters()), or train all weights."});
  const nn::Graph graph = net.graph();
  const auto embedding =
      graph.layers.empty()
          ? nullptr
          : std::dynamic_pointer_cast<TokenEmbeddingImpl>(graph.layers.front().module.make());
  if (!embedding || !is_for(embedding->config, config))
    throw UsageError("the config is not that of the layers",
                     {.hint = "Give the config that transformer() made them of."});
  TransformerConfig larger = config;
  larger.vocabulary = vocabulary;
  TransformerOptions unset = options;
  unset.weights = InitialWeights::Unset;
  GrownTransformer grown{.layers = transformer(larger, unset), .config = larger};
  const NamedTensors into = grown.layers.named_parameters();
  const NamedTensors named = first_rows(net.named_parameters(), config.vocabulary);
  const std::map<std::string, at::Tensor> from(named.begin(), named.end());
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : first_rows(into, config.vocabulary)) {
    const auto found = from.find(name);
    if (found == from.end() || found->second.sizes() != tensor.sizes() ||
        from.size() != into.size())
      throw UsageError(text("the config is not that of the layers: '", name, "' would be [",
                            join(tensor.sizes(), ", "), "]",
                            found == from.end()
                                ? std::string(", and they do not have it")
                                : text(" of ", into.size(), " parameters, and is [",
                                       join(found->second.sizes(), ", "), "] of ", from.size())));
    if (found->second.scalar_type() != tensor.scalar_type())
      throw UsageError(text("'", name, "' is ", c10::toString(found->second.scalar_type()),
                            ", and would be ", c10::toString(tensor.scalar_type())),
                       {.hint = "Give the 'type' and the 'frozen_type' that transformer() made the "
                                "layers with."});
    tensor.detach().copy_(found->second);
  }
  fill_new_rows(larger, into, config.vocabulary);
  if (!embedding->is_training()) grown.layers.eval();
  return grown;
}

}  // namespace trestle::models
