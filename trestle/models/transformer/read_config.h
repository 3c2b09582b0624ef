#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/models/transformer/config.h"

// A transformer's sizes and choices: from and to the config.json of Hugging Face's transformers,
// and those of well-known models. Needs no torch.
//
//   TransformerConfig config = read_config("smollm");  // the folder or its config.json
//   const std::string json = to_config_json(named_config("gpt2-medium"));
namespace trestle::models {

// Reads config.json as transformers 4 or 5 wrote it, for the model types gpt2, llama, qwen2 and
// mistral, the last two without a sliding window. If generation_config.json lies beside it, its
// begin and end tokens replace those of config.json. A missing or null key has the default of
// transformers, except that begin_token and end_tokens stay empty. Tokens outside the vocabulary
// are left out: no text can contain them.
//
// Dropout is the file's: 0.1 in the published files of GPT-2.
//
// Throws FileError if a file cannot be read, and FormatError with all faults at once: an unknown
// model type, missing or impossible sizes, heads that do not divide the width or are not divided by
// the key heads, and choices that transformer() does not have, each by its key and value.
TransformerConfig read_config(const std::filesystem::path& path);

// The same for the texts of the two files; `generation` may be empty. `file` is the name for
// messages.
TransformerConfig parse_config(std::string_view json, std::string_view generation,
                               const std::string& file);

// The config.json that transformers (4.44 or later) opens as the same model: of the type gpt2,
// llama, or qwen2 if only the projections of queries, keys and values have a bias. Throws
// UsageError for a model that transformers does not have.
std::string to_config_json(const TransformerConfig& config);

// A well-known model without dropout: gpt2, gpt2-medium, gpt2-large, gpt2-xl, llama-3.2-1b,
// llama-3.2-3b, llama-3.1-8b or smollm2-135m. Throws UsageError for another name. The values are
// those of the config.json files that their authors published.
TransformerConfig named_config(std::string_view name);
std::vector<std::string> config_names();

// The number of parameters of transformer(config) without adapters: 124'439'808 for "gpt2". A table
// that the head shares counts once, padded rows count.
std::int64_t parameter_count(const TransformerConfig& config);

}  // namespace trestle::models
