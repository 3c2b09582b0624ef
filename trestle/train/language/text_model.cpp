#include "trestle/train/language/text_model.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>

#include "trestle/base/error.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/models/transformer/gguf_config.h"
#include "trestle/models/transformer/head.h"
#include "trestle/models/transformer/read_config.h"
#include "trestle/models/transformer/transformer.h"
#include "trestle/nn/graph.h"
#include "trestle/tokens/open_tokenizer.h"
#include "trestle/tokens/saved_tokenizer.h"
#include "trestle/tokens/tokenizers/gguf_file.h"
#include "trestle/tokens/tokenizers/gguf_tokens.h"
#include "trestle/train/language/load_adapters.h"
#include "trestle/train/language/load_public_weights.h"
#include "trestle/train/language/transformer_recipe.h"
#include "trestle/train/run_folder/run_folder.h"

namespace trestle::train {

namespace {

namespace fs = std::filesystem;

bool int8(const TextModelOptions& options) { return options.type == at::kChar; }

nn::Layers empty_layers(TextModel& model, const TextModelOptions& options,
                        models::FrozenType frozen_type = models::FrozenType::Float32) {
  if (!options.adapters.empty()) {
    if (model.adapters.any())
      throw UsageError(text(model.weights.string(), ": has adapters of its own"),
                       {.hint = "Export the run with --names hugging_face first: that adds them to "
                                "its weights."});
    model.adapters = read_adapter_options(options.adapters);
  }
  models::TransformerConfig config = model.config;
  config.dropout = {};
  if (int8(options)) frozen_type = models::FrozenType::Int8;
  nn::Layers layers =
      models::transformer(config, {.weights = models::InitialWeights::Unset,
                                   .type = int8(options) ? at::kFloat : options.type,
                                   .adapters = model.adapters,
                                   .frozen_type = frozen_type,
                                   .tensor = options.tensor});
  return layers;
}

// Puts layers [i n / devices, (i + 1) n / devices) on device i. A tied table stays with the
// embedding, which is moved last.
void place(const nn::Layers& layers, const std::vector<Device>& devices) {
  if (devices.empty()) return;
  const at::NoGradGuard no_grad;  // errors of devices then have no advice for training
  const nn::Graph graph = layers.graph();
  const std::size_t count = graph.layers.size();
  for (std::size_t i = count; i-- > 0;)
    graph.layers[i].to(devices[i * devices.size() / count].torch);
}

constexpr const char* other_config_hint =
    "The model's config is not that of its weights: one of the two files was replaced or damaged.";

void load(TextModel& model) {
  model.layers.eval();
  load_transformer_weights(
      model.config, model.layers.named_parameters(), model.weights,
      {.memory = checkpoint::LoadMemory::Mapped, .mismatch_hint = other_config_hint},
      NewTokens::Refused, nn::slices_of(model.layers.graph()));
}

// "bytes" is the file of a tokenizer that needs none (saved_tokenizer.h).
bool has_tokenizer(const fs::path& folder) {
  const auto names = {"tokenizer.json", "vocab.json", "tokenizer.model", "bytes"};
  return std::ranges::any_of(names, [&](const char* name) { return fs::exists(folder / name); });
}

template <typename Open>
void find_chat(TextModel& model, Open open) {
  try {
    model.chat = open();
  } catch (const Error& error) {
    model.no_chat = error.what();
  }
}

// Outline: the layers are not created, and nothing is read but the config and a run's recipe.
enum class Content { Outline, All };

TextModel open_run(const fs::path& path, const TextModelOptions& options, Content content) {
  const RunFolder folder = open_run_folder(path);
  if (!fs::exists(path / "config.json"))
    throw UsageError("is the run of a model that does not write text", {.file = path.string()});
  TextModel model;
  model.kind = "run";
  model.weights = saved_weights(folder, options.checkpoint);
  model.config = models::read_config(path / "config.json");
  const recipe::Recipe recipe = recipe_of(folder);
  model.adapters = adapter_options(recipe);
  model.layers = empty_layers(model, options, frozen_type(recipe));
  if (content == Content::Outline) return model;
  load(model);
  if (fs::is_directory(path / "tokenizer")) {
    model.tokenizer = tokens::open_saved_tokenizer(path / "tokenizer");
    model.tokenizer_files = path / "tokenizer";
    find_chat(model, [&] { return tokens::open_chat_template(path / "tokenizer"); });
  }
  return model;
}

TextModel open_hugging_face(const fs::path& path, const TextModelOptions& options,
                            Content content) {
  TextModel model;
  model.kind = "Hugging Face";
  model.weights = path;
  model.config = models::read_config(path / "config.json");
  model.layers = empty_layers(model, options);
  if (content == Content::Outline) return model;
  load(model);
  if (has_tokenizer(path)) {
    model.tokenizer = tokens::open_saved_tokenizer(path);
    model.tokenizer_files = path;
  }
  find_chat(model, [&] { return tokens::open_chat_template(path); });
  return model;
}

TextModel open_gguf(const fs::path& path, const TextModelOptions& options, Content content) {
  TextModel model;
  model.kind = "GGUF";
  model.weights = path;
  model.config = models::read_gguf_config(path);
  model.layers = empty_layers(model, options);
  if (content == Content::Outline) return model;
  load(model);
  const tokens::GgufFile file = tokens::read_gguf_tokens(path);
  if (options.tokenizer.empty() && !file.tokens.model.empty())
    model.tokenizer = tokens::gguf_tokenizer(file.tokens);
  if (model.tokenizer) model.tokenizer_files = path;
  find_chat(model, [&] { return tokens::ChatTemplate::from_jinja(file.chat_template, path); });
  return model;
}

TextModel open(const fs::path& path, const TextModelOptions& options, Content content) {
  if (!fs::exists(path))
    throw UsageError(
        text(path.string(), ": there is no such model"),
        {.hint = "Name the folder of a run, a folder with config.json, or a GGUF file."});
  if (fs::exists(path / "recipe.toml")) return open_run(path, options, content);
  if (fs::is_directory(path) && fs::exists(path / "config.json"))
    return open_hugging_face(path, options, content);
  if (tokens::is_gguf_file(path)) return open_gguf(path, options, content);
  throw UsageError(
      text(path.string(),
           ": is neither the folder of a run, nor a folder with "
           "config.json, nor a GGUF file"),
      {.hint = fs::is_directory(path) ? "A model of Hugging Face is a folder with config.json and "
                                        "weights."
                                      : text("Name the folder of a file of weights, here ",
                                             fs::absolute(path).parent_path().string(), ".")});
}

}  // namespace

at::ScalarType parse_weights_type(std::string_view word, std::string_view flag) {
  if (word == "fp32") return at::kFloat;
  if (word == "bf16") return at::kBFloat16;
  if (word == "int8") return at::kChar;
  throw UsageError(text(flag, " ", word, " is not one of fp32, bf16 and int8"),
                   {.hint = "These are the types of weights that a language model writes and is "
                            "evaluated with."});
}

std::unique_ptr<tokens::Tokenizer> tokenizer_of_weights(const fs::path& weights) {
  if (tokens::is_gguf_file(weights)) return tokens::open_tokenizer(weights);
  const fs::path folder = fs::is_directory(weights) ? weights : weights.parent_path();
  if (fs::is_directory(folder / "tokenizer"))
    return tokens::open_saved_tokenizer(folder / "tokenizer");
  return has_tokenizer(folder) ? tokens::open_saved_tokenizer(folder) : nullptr;
}

std::int64_t TextModel::known_tokens() const {
  return tokenizer ? std::min<std::int64_t>(tokenizer->size(), config.vocabulary)
                   : config.vocabulary;
}

void check_text_model(const fs::path& path, TextModelOptions options, int tensor_ranks) {
  options.tensor.ranks = tensor_parallel::TensorRanks::on_paper(0, tensor_ranks);
  open(path, options, Content::Outline);
}

TextModel open_text_model(const fs::path& path, const TextModelOptions& options) {
  TextModel model = open(path, options, Content::All);
  model.type = options.type;
  if (!options.adapters.empty())
    load_adapters(model.config, model.layers.named_parameters(), options.adapters, {},
                  nn::slices_of(model.layers.graph()));
  if (int8(options)) {
    const nn::Graph graph = model.layers.graph();
    std::dynamic_pointer_cast<models::HeadImpl>(graph.layers.back().module.make())->round_to_int8();
  }
  if (!options.tokenizer.empty()) model.tokenizer = tokens::open_tokenizer(options.tokenizer);
  if (!options.chat_template.empty())
    model.chat = tokens::open_chat_template(options.chat_template);
  place(model.layers, options.devices);
  return model;
}

}  // namespace trestle::train
