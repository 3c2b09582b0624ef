#include "trestle/train/language/export_model.h"

#include <nlohmann/json.hpp>
#include <string>
#include <system_error>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/safetensors.h"
#include "trestle/checkpoint/weights.h"
#include "trestle/models/transformer/adapters.h"
#include "trestle/models/transformer/peft_config.h"
#include "trestle/models/transformer/public_weights.h"
#include "trestle/models/transformer/read_config.h"
#include "trestle/tokens/saved_tokenizer.h"

namespace trestle::train {

namespace {

namespace fs = std::filesystem;

// The folder of the result. If it did not exist before, an error removes it again.
class ResultFolder {
 public:
  ResultFolder(fs::path folder, Overwrite overwrite) : folder_(std::move(folder)) {
    if (fs::exists(folder_) && !fs::is_directory(folder_))
      throw UsageError(text(folder_.string(), ": is a file, and the model is a folder"));
    if (fs::exists(folder_) && !fs::is_empty(folder_) && overwrite == Overwrite::Refuse)
      throw UsageError(text(folder_.string(), ": exists already, and is not empty"),
                       {.hint = "Choose another folder, or allow to replace its files "
                                "(--overwrite)."});
    std::error_code why;
    is_new_ = fs::create_directories(folder_, why);
    if (why) throw FileError(why.message(), {.file = folder_.string()});
  }
  ResultFolder(const ResultFolder&) = delete;
  ResultFolder& operator=(const ResultFolder&) = delete;
  ~ResultFolder() {
    std::error_code ignored;
    if (is_new_ && !is_whole_) fs::remove_all(folder_, ignored);
  }
  void is_whole() { is_whole_ = true; }

 private:
  fs::path folder_;
  bool is_new_ = false, is_whole_ = false;
};

ExportedModel count(const NamedTensors& views) {
  ExportedModel result{.tensors = views.size()};
  for (const auto& [name, tensor] : views) result.numbers += tensor.numel();
  return result;
}

// Python's AutoTokenizer guesses the class and knows no end token without this file, which a GGUF
// file and a run lack.
void write_tokenizer_config(const TextModel& model, const fs::path& folder) {
  const fs::path file = folder / "tokenizer_config.json";
  if (!model.tokenizer || !fs::exists(folder / "tokenizer.json") || fs::exists(file)) return;
  nlohmann::ordered_json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                                   {"model_max_length", model.config.context}};
  const auto add = [&](const char* name, std::int64_t id) {
    if (id < model.tokenizer->size())
      config[name] = std::string(model.tokenizer->bytes(static_cast<tokens::Id>(id)));
  };
  if (model.config.begin_token) add("bos_token", *model.config.begin_token);
  if (!model.config.end_tokens.empty()) add("eos_token", model.config.end_tokens.front());
  constexpr auto replace = nlohmann::ordered_json::error_handler_t::replace;
  write_file(file, config.dump(2, ' ', false, replace) + "\n");
}

}  // namespace

ExportedModel export_text_model(const TextModel& model, const fs::path& folder, Overwrite overwrite,
                                std::optional<Bytes> largest_file) {
  if (model.type == at::kChar)
    throw UsageError("int8 weights are not exported", {.hint = "Open the model in fp32 or bf16."});
  ResultFolder result(folder, overwrite);
  models::merge_adapters(model.layers);
  NamedTensors views = models::public_views(model.config, models::PublicNames::HuggingFace,
                                            model.layers.named_parameters());
  // A frozen base may have another type, and merged weights have fp32.
  if (model.type)
    for (auto& [name, tensor] : views) tensor = tensor.to(*model.type);
  if (model.config.style == models::TransformerConfig::Style::Gpt2)
    for (auto& [name, tensor] : views)
      if (name != "lm_head.weight") name = "transformer." + name;
  checkpoint::write_weights_files(folder, views, largest_file);
  if (!model.tokenizer_files.empty()) tokens::copy_tokenizer(model.tokenizer_files, folder);
  write_tokenizer_config(model, folder);
  write_file(folder / "config.json", models::to_config_json(model.config));
  result.is_whole();
  return count(views);
}

ExportedModel export_adapters(const TextModel& model, const fs::path& folder, Overwrite overwrite) {
  const NamedTensors views = models::adapter_views(model.config, model.layers.named_parameters());
  if (views.empty())
    throw UsageError(text(model.weights.string(), ": has no adapters"),
                     {.hint = "'adapter_rank' in [adapters] trains some."});
  ResultFolder result(folder, overwrite);
  checkpoint::write_tensors(folder / "adapter_model.safetensors", views, {{"format", "pt"}});
  write_file(folder / "adapter_config.json",
             models::to_peft_config(model.adapters, model.config.style));
  result.is_whole();
  return count(views);
}

}  // namespace trestle::train
