#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>

#include "trestle/base/overwrite.h"
#include "trestle/base/units.h"
#include "trestle/train/language/text_model.h"

// Writes a language model for Hugging Face.
//
//   auto model = trestle::train::open_text_model("runs/gpt_characters");
//   trestle::train::export_text_model(model, "gpt_characters");
//
// In Python: AutoModelForCausalLM.from_pretrained("gpt_characters").
namespace trestle::train {

struct ExportedModel {
  std::size_t tensors = 0;
  std::int64_t numbers = 0;
};

// Writes a folder with config.json, model.safetensors under Hugging Face's names (or several files
// of at most `largest_file` bytes and their index), and the files of the tokenizer, with
// tokenizer_config.json for Python where they lack it. Adapters are added to the weights beside
// them. The weights of an opened model have its type (TextModelOptions::type), fp32 or bf16; throws
// UsageError for int8. Rows of the vocabulary that the tokenizer does not have are written too: the
// config's vocabulary counts them. After an error a folder that did not exist before does not
// exist. Throws UsageError for a folder that is not empty, unless its files may be overwritten, and
// FileError if the system rejects a write.
ExportedModel export_text_model(const TextModel& model, const std::filesystem::path& folder,
                                Overwrite overwrite = Overwrite::Refuse,
                                std::optional<Bytes> largest_file = {});

// Writes the adapters of a model alone, as PEFT does: adapter_model.safetensors and
// adapter_config.json. Throws UsageError for a model without adapters, and as above.
ExportedModel export_adapters(const TextModel& model, const std::filesystem::path& folder,
                              Overwrite overwrite = Overwrite::Refuse);

}  // namespace trestle::train
