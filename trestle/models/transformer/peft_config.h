#pragma once

#include <string>
#include <string_view>

#include "trestle/models/transformer/config.h"
#include "trestle/models/transformer/low_rank.h"

// The adapter_config.json of Python's PEFT, which lies beside adapter_model.safetensors.
namespace trestle::models {

// Reads the rank, alpha, dropout and targets. With use_rslora, PEFT multiplies by alpha / sqrt(r):
// `alpha` is that of alpha / rank then. `file` is for messages. Throws FormatError for another
// method than LoRA, and for keys that change what the adapters compute in a way that LowRankOptions
// cannot express, such as use_dora, modules_to_save or rank_pattern.
LowRankOptions parse_peft_config(std::string_view bytes, const std::string& file);

// The file's text for adapters of a model of this style.
std::string to_peft_config(const LowRankOptions& adapters, TransformerConfig::Style style);

}  // namespace trestle::models
