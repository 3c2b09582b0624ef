#pragma once

#include "trestle/models/transformer/transformer.h"

namespace trestle {

// A GPT-2 of five layers with rows of 16 tokens, whose head uses the embedding's table.
inline nn::Layers small_gpt2(std::int64_t vocabulary) {
  return models::transformer({.vocabulary = vocabulary,
                              .context = 16,
                              .width = 32,
                              .layers = 2,
                              .heads = 2,
                              .kv_heads = 2,
                              .head_size = 16,
                              .mlp = 128});
}

}  // namespace trestle
