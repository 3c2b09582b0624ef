#include "trestle/train/language/export_model.h"

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/checkpoint/safetensors.h"
#include "trestle/models/transformer/adapters.h"
#include "trestle/models/transformer/peft_config.h"
#include "trestle/models/transformer/public_weights.h"
#include "trestle/models/transformer/read_config.h"
#include "trestle/tokens/saved_tokenizer.h"

namespace trestle::train {

namespace {

namespace fs = std::filesystem;

void make_folder(const fs::path& folder, Overwrite overwrite) {
  if (fs::exists(folder) && !fs::is_directory(folder))
    throw UsageError(text(folder.string(), ": is a file, and the model is a folder"));
  if (fs::exists(folder) && !fs::is_empty(folder) && overwrite == Overwrite::Refuse)
    throw UsageError(text(folder.string(), ": exists already, and is not empty"),
                     {.hint = "Choose another folder, or allow to replace its files "
                              "(--overwrite)."});
  std::error_code why;
  fs::create_directories(folder, why);
  if (why) throw FileError(why.message(), {.file = folder.string()});
}

ExportedModel write(const fs::path& file, const NamedTensors& views) {
  ExportedModel result{.tensors = views.size()};
  for (const auto& [name, tensor] : views) result.numbers += tensor.numel();
  checkpoint::write_tensors(file, views, {{"format", "pt"}});
  return result;
}

}  // namespace

ExportedModel export_text_model(const TextModel& model, const fs::path& folder,
                                Overwrite overwrite) {
  make_folder(folder, overwrite);
  models::merge_adapters(model.layers);
  NamedTensors views = models::public_views(model.config, models::PublicNames::HuggingFace,
                                            model.layers.named_parameters());
  if (model.config.style == models::TransformerConfig::Style::Gpt2)
    for (auto& [name, tensor] : views)
      if (name != "lm_head.weight") name = "transformer." + name;
  const ExportedModel result = write(folder / "model.safetensors", views);
  if (!model.tokenizer_files.empty()) tokens::copy_tokenizer(model.tokenizer_files, folder);
  write_file(folder / "config.json", models::to_config_json(model.config));
  return result;
}

ExportedModel export_adapters(const TextModel& model, const fs::path& folder, Overwrite overwrite) {
  const NamedTensors views = models::adapter_views(model.config, model.layers.named_parameters());
  if (views.empty())
    throw UsageError(text(model.weights.string(), ": has no adapters"),
                     {.hint = "'adapter_rank' in [adapters] trains some."});
  make_folder(folder, overwrite);
  const ExportedModel result = write(folder / "adapter_model.safetensors", views);
  write_file(folder / "adapter_config.json",
             models::to_peft_config(model.adapters, model.config.style));
  return result;
}

}  // namespace trestle::train
