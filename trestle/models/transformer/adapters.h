#pragma once

#include <cstdint>
#include <vector>

#include "trestle/device/named_tensors.h"
#include "trestle/models/transformer/config.h"
#include "trestle/models/transformer/public_weights.h"
#include "trestle/nn/layers.h"
#include "trestle/nn/parameter_slice.h"

// The adapters of a transformer (low_rank.h) by themselves.
namespace trestle::models {

// The parameters of adapters among `ours`.
NamedTensors adapters_of(const NamedTensors& ours);

// The same as views under PEFT's names:
// "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight" for blocks.0.attention.qkv's
// lora_q.a.
NamedTensors adapter_views(const TransformerConfig& config, const NamedTensors& ours);

// The same for a rank that holds slices of some of them (tensor parallelism).
std::vector<PublicBox> adapter_boxes(const TransformerConfig& config, const NamedTensors& ours,
                                     const nn::ParameterSlices& slices);

// Replaces int8 weights by the fp32 matrices that they stand for (int8_rows.h); "scales" are gone
// from the parameters then.
void dequantise(const nn::Layers& model);

// Dequantises the model, adds each adapter's product to the weight beside it, and sets the adapter
// to zero: the model computes the same without its adapters. A bf16 or fp16 weight with an adapter
// is fp32 then. Returns the number of adapters. A tensor rank does so with its slices alone.
std::int64_t merge_adapters(const nn::Layers& model);

}  // namespace trestle::models
