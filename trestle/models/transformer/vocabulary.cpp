#include "trestle/models/transformer/vocabulary.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <map>
#include <string>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/models/transformer/embedding.h"
#include "trestle/tensor_parallel/operators.h"

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

namespace {

// Fills this rank's new rows of a table, of which it holds the rows `own`. rows(first, count) gives
// rows of the whole table.
template <class Rows>
void fill(const TransformerConfig& config, const at::Tensor& table, const nn::IndexRange& own,
          std::int64_t known, const Rows& rows) {
  const std::int64_t first = std::clamp<std::int64_t>(known - own.begin, 0, own.size);
  const std::int64_t end = std::clamp<std::int64_t>(config.vocabulary - own.begin, 0, own.size);
  if (first == end) return;
  at::Tensor sum = at::zeros({table.size(1)}, table.options().dtype(at::kDouble));
  constexpr std::int64_t chunk = 4096;  // rows that exist in double at once
  for (std::int64_t row = 0; row < known; row += chunk)
    sum += rows(row, std::min(chunk, known - row)).sum(0, false, at::kDouble);
  table.narrow(0, first, end - first).copy_(sum / static_cast<double>(known));
}

void check_known(const TransformerConfig& config, std::int64_t known) {
  if (known < 1 || known > config.vocabulary)
    throw UsageError(text("the rows of new tokens are those from ", known,
                          " on, and the model has ", config.vocabulary, " tokens"));
}

}  // namespace

void fill_new_rows(const TransformerConfig& config, const NamedTensors& ours, std::int64_t known) {
  fill_new_rows(config, ours, known, {}, {});
}

void fill_new_rows(const TransformerConfig& config, const NamedTensors& ours, std::int64_t known,
                   const nn::ParameterSlices& slices, const RowsOfTable& rows) {
  check_known(config, known);
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : ours) {
    if (!is_vocabulary_table(name)) continue;
    const at::Tensor table = tensor.detach();
    const auto slice = slices.find(name);
    if (slice == slices.end())
      fill(config, table, {0, table.size(0)}, known,
           [&](std::int64_t first, std::int64_t count) { return table.narrow(0, first, count); });
    else
      fill(config, table, slice->second.ranges[0], known,
           [&, name = name](std::int64_t first, std::int64_t count) {
             return rows(name, first, count, table.scalar_type()).to(table.device());
           });
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

// This rank's rows of a larger table, which other ranks may have held before: it gathers the whole
// old one, of which it holds `old`.
void grow_slice(const TransformerConfig& larger, const TransformerConfig& config,
                const at::Tensor& table, const nn::IndexRange& own,
                const tensor_parallel::TensorRanks& ranks, const at::Tensor& old) {
  const at::Tensor whole =
      tensor_parallel::gather(ranks, tensor_parallel::Sharded(old.detach(), 0, table_rows(config)))
          .tensor;
  const std::int64_t known = config.vocabulary;
  const std::int64_t kept = std::clamp<std::int64_t>(known - own.begin, 0, own.size);
  if (kept > 0) table.narrow(0, 0, kept).copy_(whole.narrow(0, own.begin, kept));
  fill(larger, table, own, known,
       [&](std::int64_t first, std::int64_t count) { return whole.narrow(0, first, count); });
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
  const auto& ranks = options.tensor.ranks;
  if (embedding->tensor.ranks.size() != ranks.size())
    throw UsageError(text("the layers are split over ", embedding->tensor.ranks.size(),
                          " tensor ranks, and the larger ones would be over ", ranks.size()),
                     {.hint = "Give the ranks of the layers as 'tensor' in the options."});
  const nn::ParameterSlices slices = nn::slices_of(grown.layers.graph());
  const NamedTensors into = grown.layers.named_parameters();
  const auto old_rows = [&](const NamedTensors& all) {
    return slices.empty() ? first_rows(all, config.vocabulary) : all;
  };
  const NamedTensors named = old_rows(net.named_parameters());
  const std::map<std::string, at::Tensor> from(named.begin(), named.end());
  const at::NoGradGuard no_grad;
  for (const auto& [name, tensor] : old_rows(into)) {
    const auto found = from.find(name);
    const auto slice = is_vocabulary_table(name) ? slices.find(name) : slices.end();
    const bool moves = slice != slices.end();  // its rows change their rank
    if (found == from.end() || (!moves && found->second.sizes() != tensor.sizes()) ||
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
    if (moves)
      grow_slice(larger, config, tensor.detach(), slice->second.ranges[0], ranks, found->second);
    else
      tensor.detach().copy_(found->second);
  }
  if (slices.empty()) fill_new_rows(larger, into, config.vocabulary);
  if (!embedding->is_training()) grown.layers.eval();
  return grown;
}

}  // namespace trestle::models
