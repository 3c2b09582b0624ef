#pragma once

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/device/device.h"
#include "trestle/models/transformer/config.h"
#include "trestle/models/transformer/low_rank.h"
#include "trestle/models/transformer/tensor_split.h"
#include "trestle/nn/layers.h"
#include "trestle/tokens/chat_template.h"
#include "trestle/tokens/tokenizer.h"
#include "trestle/train/run_folder/run_checkpoint.h"

// A trained language model with its tokenizer, from any place that holds one.
//
//   auto model = trestle::train::open_text_model("runs/gpt_characters");
//   trestle::generate::LanguageModel writer(model.layers, model.config);
namespace trestle::train {

struct TextModel {
  std::string kind;  // "run", "Hugging Face" or "GGUF", for messages
  std::filesystem::path weights;
  models::TransformerConfig config;
  std::optional<at::ScalarType> type;  // TextModelOptions::type, of an opened model
  nn::Layers layers;
  std::shared_ptr<const tokens::Tokenizer> tokenizer;  // null: none was found
  std::filesystem::path tokenizer_files;               // where it is; empty: none
  models::LowRankOptions adapters;           // of a run that trained some, or of TextModelOptions
  std::optional<tokens::ChatTemplate> chat;  // nothing: none was found
  std::string no_chat;                       // the error why not
  // Tokens that the tokenizer has; ids from there on are padded rows of the vocabulary.
  std::int64_t known_tokens() const;
};

struct TextModelOptions {
  Checkpoint checkpoint = Checkpoint::Best;  // of a run
  // The weights' type in memory: fp32, bf16, or int8. With int8 the blocks' projections and the
  // head have a scale for each row (models/transformer/int8_rows.h), tables are in bf16, and
  // everything around them is in fp32.
  at::ScalarType type = at::kFloat;
  // One device for all layers, or several: then the blocks are divided evenly.
  std::vector<Device> devices = {};
  std::filesystem::path tokenizer = {};      // instead of the model's own
  std::filesystem::path chat_template = {};  // instead of the model's own: see open_chat_template()
  std::filesystem::path adapters =
      {};  // a folder of PEFT whose adapters are put beside the weights
  // Splits the layers over tensor ranks (TransformerOptions::tensor). Each rank reads its slices of
  // the weights, and has one device.
  models::TensorSplit tensor = {};
};

// "fp32", "bf16" or "int8" as TextModelOptions::type. Throws UsageError for another word, which
// names `flag`.
at::ScalarType parse_weights_type(std::string_view word, std::string_view flag);

// The tokenizer that belongs to weights: that of a GGUF file, of the folder of Hugging Face, or of
// the run of a file of weights. Null where none is found.
std::unique_ptr<tokens::Tokenizer> tokenizer_of_weights(const std::filesystem::path& weights);

// Opens a run folder of a language model, a folder of Hugging Face (config.json and weights), or a
// GGUF file. On the CPU, weights of a safetensors file have the file's pages as their memory where
// type, order and alignment are those of the model (checkpoint::LoadMemory::Mapped). Throws
// UsageError for another path and for adapters beside those of a run, FormatError for weights or
// adapters that do not fit the config, with the tensors and both shapes.
TextModel open_text_model(const std::filesystem::path& path, const TextModelOptions& options = {});

// Throws the errors of open_text_model() for a model that does not exist or that this number of
// tensor ranks cannot split, before any rank is started. It reads no weights.
void check_text_model(const std::filesystem::path& path, TextModelOptions options,
                      int tensor_ranks);

}  // namespace trestle::train
