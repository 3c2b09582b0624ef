#pragma once

#include <filesystem>

#include "trestle/checkpoint/weights.h"
#include "trestle/device/named_tensors.h"
#include "trestle/models/transformer/config.h"
#include "trestle/models/transformer/low_rank.h"
#include "trestle/nn/parameter_slice.h"

// Adapters in a folder of Python's PEFT, as export_adapters() writes it. Not installed.
namespace trestle::train {

// The options of the folder's adapter_config.json. Throws UsageError for a path without that file,
// and as models::parse_peft_config().
models::LowRankOptions read_adapter_options(const std::filesystem::path& folder);

// Loads adapter_model.safetensors, or adapter_model.bin, into the adapters among `ours`, which may
// be any part of the model, or a tensor rank's `slices` of it. As checkpoint::load_weights():
// errors name the file, the tensors and both shapes.
checkpoint::LoadReport load_adapters(const models::TransformerConfig& config,
                                     const NamedTensors& ours, const std::filesystem::path& folder,
                                     checkpoint::LoadOptions options = {},
                                     const nn::ParameterSlices& slices = {});

}  // namespace trestle::train
