#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "trestle/device/named_tensors.h"
#include "trestle/models/transformer/config.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/nn/layers.h"
#include "trestle/nn/parameter_slice.h"

// New tokens for a model that is trained already: the embedding and the head grow together.
//
//   auto grown = trestle::models::grow_vocabulary(net, config, config.vocabulary + 2);
//   // grown.layers takes and scores two tokens more; all old rows have the same bits
//
// A model whose weights are in a file need not exist in two sizes: make it with the larger
// vocabulary, load the old rows, and fill the new ones.
//
//   auto larger = config;
//   larger.vocabulary += 2;
//   auto larger_net = trestle::models::transformer(larger);
//   auto names = trestle::models::PublicNames::HuggingFace;
//   auto old_rows = trestle::models::public_views(config, names, larger_net.named_parameters());
//   // trestle::checkpoint::load_weights(old_rows, "model.safetensors", ...);
//   trestle::models::fill_new_rows(larger, larger_net.named_parameters(), config.vocabulary);
namespace trestle::models {

// Whether this is one of the tables of the vocabulary, "embed.tokens" and "head.weight".
bool is_vocabulary_table(std::string_view parameter);

// `ours`, with the tables of the vocabulary as views of at most their first `rows` rows.
NamedTensors first_rows(const NamedTensors& ours, std::int64_t rows);

// Fills the rows from `known` to config.vocabulary - 1 of the tables among `ours`, which may be any
// part of the model, such as a stage: each becomes the mean of the table's rows before `known`,
// summed in double. So the new tokens' scores are the mean of the old ones, and together they take
// at most the share (new tokens) / (all tokens) of the probability: the model writes nearly what it
// wrote (Hewitt 2021, "Initializing new word embeddings for pretrained language models"). Rows
// drawn near 0 would have scores of 0, and be the most probable tokens of a model whose scores are
// negative. Nothing is drawn, so seed, ranks and stages do not matter. Training separates the new
// rows, because their tokens stand at different places. Throws UsageError for a `known` below 1 or
// above config.vocabulary.
void fill_new_rows(const TransformerConfig& config, const NamedTensors& ours, std::int64_t known);

// The same for a tensor rank that holds `slices` of the tables' rows: `rows` reads the whole table
// in the slice's type, some thousand rows at once, and this rank's new rows get the bits of the
// unsplit model.
using RowsOfTable = std::function<at::Tensor(const std::string& table, std::int64_t first,
                                             std::int64_t count, at::ScalarType type)>;
void fill_new_rows(const TransformerConfig& config, const NamedTensors& ours, std::int64_t known,
                   const nn::ParameterSlices& slices, const RowsOfTable& rows);

struct GrownTransformer {
  nn::Layers layers;
  TransformerConfig config;
};

// A transformer with this vocabulary and the weights of `net`, the layers of transformer(config):
// the old rows of its tables have the same bits, and the new ones are filled as above, a tied table
// once. `net` is unchanged, and holds its own memory. `options.seed` and `options.attention` are
// those of the new layers, on the CPU; their types must be those of `net`, whose mode they have.
// Tensor ranks grow their slices together, with the ranks of `net` as `options.tensor`: each
// gathers the old tables for a while, because rows change their rank. Throws UsageError for a
// vocabulary below config.vocabulary, for layers of another config, of another type or of other
// ranks, and for adapters: the tables beside them are frozen, so that the new rows would never be
// learned.
GrownTransformer grow_vocabulary(const nn::Layers& net, const TransformerConfig& config,
                                 std::int64_t vocabulary, const TransformerOptions& options = {});

}  // namespace trestle::models
