#include "trestle/train/language/load_adapters.h"

#include <string>
#include <utility>

#include "trestle/base/error.h"
#include "trestle/base/files.h"
#include "trestle/base/text.h"
#include "trestle/models/transformer/adapters.h"
#include "trestle/models/transformer/peft_config.h"
#include "trestle/train/language/load_public_weights.h"

namespace trestle::train {

models::LowRankOptions read_adapter_options(const std::filesystem::path& folder) {
  const std::filesystem::path file = folder / "adapter_config.json";
  if (!std::filesystem::exists(file))
    throw UsageError(
        text(folder.string(), ": is no folder of adapters: it has no ", file.filename().string()),
        {.hint = "PEFT's save_pretrained() and `trestle export --names peft` write "
                 "such folders."});
  return models::parse_peft_config(read_text_file(file), file.string());
}

checkpoint::LoadReport load_adapters(const models::TransformerConfig& config,
                                     const NamedTensors& ours, const std::filesystem::path& folder,
                                     checkpoint::LoadOptions options,
                                     const nn::ParameterSlices& slices) {
  options.rename = [](const std::string& name) { return name; };
  const std::filesystem::path pickled = folder / "adapter_model.bin";
  const std::filesystem::path file =
      std::filesystem::exists(pickled) ? pickled : folder / "adapter_model.safetensors";
  return load_boxes(models::adapter_boxes(config, ours, slices), file, std::move(options));
}

}  // namespace trestle::train
