#pragma once

#include <cstdint>
#include <filesystem>
#include <vector>

#include "trestle/checkpoint/weights.h"
#include "trestle/device/named_tensors.h"
#include "trestle/models/transformer/config.h"
#include "trestle/models/transformer/public_weights.h"
#include "trestle/nn/parameter_slice.h"

// Loads the weights of a language model from files that other programs wrote. Not installed.
namespace trestle::train {

// Tokens of the config whose rows the file does not have.
enum class NewTokens {
  Refused,  // the config is not that of the file: an error with both shapes
  Filled,   // their rows are the mean of the file's rows: fill_new_rows() in vocabulary.h
};

// As checkpoint::load_weights() for any part of a transformer, such as a stage: also from files of
// Hugging Face and GGUF files, whose names are recognised. Adapters are left as they are where the
// file has none. Int8 weights (int8_rows.h) are rounded once, from the file's numbers in fp32; a
// run's own are copied. Padded rows stay zeros.
//
// With `slices` `ours` are a tensor rank's slices of these parameters, and get the bits of the
// unsplit model. The rank reads its bytes of the file alone, but for two cases: int8 rows whose
// inputs are split have a scale of all inputs, and new rows are the mean of the whole table.
checkpoint::LoadReport load_transformer_weights(const models::TransformerConfig& config,
                                                const NamedTensors& ours,
                                                const std::filesystem::path& file,
                                                const checkpoint::LoadOptions& options,
                                                NewTokens new_tokens = NewTokens::Refused,
                                                const nn::ParameterSlices& slices = {});

// Loads into a model's tensors, or into a rank's boxes of them.
checkpoint::LoadReport load_boxes(const std::vector<models::PublicBox>& boxes,
                                  const std::filesystem::path& file,
                                  checkpoint::LoadOptions options);

// The rows of the file's table of tokens; 0 if it has no such table of the config's width.
std::int64_t tokens_of_weights(const models::TransformerConfig& config,
                               const std::filesystem::path& file);

}  // namespace trestle::train
