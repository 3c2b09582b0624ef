#pragma once

#include <filesystem>
#include <vector>

#include "trestle/models/transformer/config.h"

namespace trestle::checkpoint {
struct GgufHeader;
}

// A transformer's sizes and choices from a GGUF file of llama.cpp. Needs no torch.
//
//   auto config = models::read_gguf_config("smollm/model.gguf");
namespace trestle::models {

// Reads the metadata of the architectures llama and gpt2. The head is tied if there is no tensor
// output.weight; biases exist if block 0 has them. The tokens are those of bos_token_id and of
// eos_token_id, eot_token_id and eom_token_id.
//
// A tensor rope_freqs.weight divides the rotary frequencies. It is read as Llama 3's scaling from
// 8192 tokens with the factors 1 and 4, as in all models of Llama 3.1 to 3.3, and is an error if it
// has other values.
//
// Throws like checkpoint::read_gguf_header(), and FormatError with all faults at once: another
// architecture, missing or impossible sizes, choices that transformer() does not have.
TransformerConfig read_gguf_config(const std::filesystem::path& path);

// The same for a header. `rope_factors` are the values of rope_freqs.weight.
TransformerConfig config_of_gguf(const checkpoint::GgufHeader& header,
                                 const std::vector<float>& rope_factors = {});

}  // namespace trestle::models
