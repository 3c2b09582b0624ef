#include "trestle/train/language/load_public_weights.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "trestle/models/transformer/public_weights.h"

namespace trestle::train {

namespace {

// Whose names the file has; nothing: trestle's own.
std::optional<models::PublicNames> names_in(const std::filesystem::path& file) {
  for (const checkpoint::StoredTensor& tensor : checkpoint::list_weights(file)) {
    if (tensor.name == "token_embd.weight") return models::PublicNames::Gguf;
    if (tensor.name.ends_with("wte.weight") || tensor.name == "model.embed_tokens.weight")
      return models::PublicNames::HuggingFace;
  }
  return std::nullopt;
}

bool is_adapter(const std::string& name) { return name.find(".lora") != std::string::npos; }

}  // namespace

checkpoint::LoadReport load_transformer_weights(const models::TransformerConfig& config,
                                                const NamedTensors& ours,
                                                const std::filesystem::path& file,
                                                checkpoint::LoadOptions options) {
  if (const auto names = names_in(file)) {
    options.rename = [&](const std::string& name) {
      return models::canonical_name(config, *names, name);
    };
    const auto report =
        checkpoint::load_weights(models::public_views(config, *names, ours), file, options);
    if (*names == models::PublicNames::Gguf) models::rotary_rows_from_gguf(config, ours);
    return report;
  }
  const auto in_file = checkpoint::list_weights(file);
  const bool has_adapters =
      std::any_of(in_file.begin(), in_file.end(),
                  [](const checkpoint::StoredTensor& one) { return is_adapter(one.name); });
  NamedTensors into = ours;
  if (!has_adapters) std::erase_if(into, [](const auto& one) { return is_adapter(one.first); });
  return checkpoint::load_weights(into, file, options);
}

}  // namespace trestle::train
