#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trestle/device/named_tensors.h"
#include "trestle/models/transformer/config.h"
#include "trestle/nn/parameter_slice.h"

// The names and layouts that public files give the weights of a transformer.
//
//   auto views = public_views(config, PublicNames::HuggingFace, net.named_parameters());
//   checkpoint::load_weights(views, "smollm/model.safetensors",
//                            {.rename = [&](const std::string& name) {
//                              return canonical_name(config, PublicNames::HuggingFace, name);
//                            }});
namespace trestle::models {

enum class PublicNames {
  HuggingFace,  // GPT2LMHeadModel and LlamaForCausalLM: safetensors and torch.save
  Gguf,         // llama.cpp
};

// The parameters of transformer() as views under the public names and in the public shapes: copying
// into a view loads that part of a fused projection, and a transposed one where the file stores
// [inputs, outputs] (GPT-2's Conv1D). `ours` may be any part of the model, such as a stage.
// Parameters with another name, such as adapters, are left out. Names of Gpt2 have no
// "transformer." before them. The tables of the vocabulary are views of their first
// config.vocabulary rows: without padded rows, and without those of new tokens if `config` is that
// of a file with fewer tokens (vocabulary.h).
NamedTensors public_views(const TransformerConfig& config, PublicNames names,
                          const NamedTensors& ours);

// The same for a rank that holds slices of some parameters (tensor parallelism).
struct PublicBox {
  std::string name;
  at::Tensor view;
  // The box of the file's tensor that the view is, and that tensor's shape; empty for all of it.
  // Several boxes may be of one tensor.
  std::vector<std::int64_t> offset = {};
  std::vector<std::int64_t> whole = {};
};
std::vector<PublicBox> public_boxes(const TransformerConfig& config, PublicNames names,
                                    const NamedTensors& ours, const nn::ParameterSlices& slices);
// The same under trestle's own names, for files of trestle.
std::vector<PublicBox> own_boxes(const TransformerConfig& config, const NamedTensors& ours,
                                 const nn::ParameterSlices& slices);

// The name that public_views() gives the tensor of a file: without "transformer." for Gpt2. Empty
// for tensors that are no weights (causal masks, rotary frequencies), and for a stored head where
// the config ties it.
std::string canonical_name(const TransformerConfig& config, PublicNames names,
                           std::string_view in_file);

// Hugging Face's name of a projection, such as "blocks.0.attention.qkv", or of its part "q", "k",
// "v", "gate" or "up": "model.layers.0.self_attn.q_proj".
std::string public_module(const TransformerConfig& config, const std::string& projection,
                          const std::string& part);

// Reorders the query and key rows of `ours` in place, after a GGUF file of the architecture llama
// was loaded into them. It stores the rows of each head for interleaved rotary pairs: (0, half),
// (1, half + 1), ... next to each other. No effect for Gpt2.
//
// With `slices` it reorders this rank's whole heads. With fewer kv_heads than tensor ranks a rank
// has a part of the keys' heads, whose rows public_boxes() takes one by one in our order.
void rotary_rows_from_gguf(const TransformerConfig& config, const NamedTensors& ours,
                           const nn::ParameterSlices& slices = {});

}  // namespace trestle::models
