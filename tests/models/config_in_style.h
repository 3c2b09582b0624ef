#pragma once

#include "trestle/models/transformer/config.h"

namespace trestle::models {

// These sizes as those of a model of the style. Two heads of keys and values of a Llama serve all
// heads.
inline TransformerConfig config_in_style(TransformerConfig::Style style, TransformerConfig sizes) {
  sizes.style = style;
  if (style == TransformerConfig::Style::Gpt2) return sizes;
  sizes.kv_heads = 2;
  sizes.qkv_bias = sizes.out_bias = sizes.mlp_bias = false;
  sizes.activation = TransformerConfig::Activation::Silu;
  return sizes;
}

}  // namespace trestle::models
