#pragma once

#include "trestle/models/transformer/config.h"
#include "trestle/models/transformer/low_rank.h"
#include "trestle/recipe/recipe.h"

// The sizes of a language model from a recipe. Not installed.
namespace trestle::train {

// Whether the recipe's model is "gpt2" or "llama".
bool is_transformer(const recipe::Recipe& recipe);

// The sizes: those of `config` in [transformer], changed by the other fields and by `width` in
// [model]. Without any number of tokens it is that of the token files of [data]. Throws UsageError
// for sizes that contradict one another, and for a config of the other style.
models::TransformerConfig transformer_config(const recipe::Recipe& recipe);

}  // namespace trestle::train
