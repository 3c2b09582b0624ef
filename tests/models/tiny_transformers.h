#pragma once

#include "tests/models/config_in_style.h"

// Two small models of 40 tokens for tests.
namespace trestle::models {

// The head is tied.
inline TransformerConfig tiny_gpt2() {
  return {.style = TransformerConfig::Style::Gpt2,
          .vocabulary = 40,
          .context = 16,
          .width = 16,
          .layers = 2,
          .heads = 4,
          .kv_heads = 4,
          .head_size = 4,
          .mlp = 64};
}

// Two heads share each pair of keys and values; the head is not tied.
inline TransformerConfig tiny_llama() {
  TransformerConfig config = config_in_style(TransformerConfig::Style::Llama, tiny_gpt2());
  config.tied_head = false;
  return config;
}

}  // namespace trestle::models
