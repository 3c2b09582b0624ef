#pragma once

#include "trestle/models/transformer/config.h"
#include "trestle/recipe/recipe.h"

// The sizes of a language model from a recipe. Not installed.
namespace trestle::train {

// Whether the recipe's model is "gpt2" or "llama".
bool is_transformer(const recipe::Recipe& recipe);

// The sizes from [transformer], from `width` in [model], and from the token files of [data] where
// the recipe sets no vocabulary. Throws UsageError for sizes that contradict one another.
models::TransformerConfig transformer_config(const recipe::Recipe& recipe);

}  // namespace trestle::train
