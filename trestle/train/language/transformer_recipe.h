#pragma once

#include "trestle/checkpoint/padded_rows.h"
#include "trestle/models/transformer/config.h"
#include "trestle/models/transformer/low_rank.h"
#include "trestle/recipe/recipe.h"

// The sizes of a language model from a recipe. Not installed.
namespace trestle::train {

// Whether the recipe's model is "gpt2" or "llama".
bool is_transformer(const recipe::Recipe& recipe);

// The number of tokens in an example of the recipe's data; 0 for other data.
std::int64_t tokens_of_example(const recipe::Recipe& recipe);

// The sizes: those of `config` in [transformer], changed by the other fields and by `width` in
// [model]. Without any number of tokens it is that of the token files of [data]. Throws UsageError
// for sizes that contradict one another, and for a config of the other style.
models::TransformerConfig transformer_config(const recipe::Recipe& recipe);

// The rows of the model that its checkpoints do not have, from `vocabulary_multiple` in
// [transformer]; none for other models.
checkpoint::PaddedRows padded_rows(const recipe::Recipe& recipe);

// The adapters of [adapters]; none without a rank. Throws UsageError for targets that the model
// does not have.
models::LowRankOptions adapter_options(const recipe::Recipe& recipe);

// The dtype of the frozen weights, from [adapters].
models::FrozenType frozen_type(const recipe::Recipe& recipe);

// The recipe with the vocabulary and the context of its model, where it leaves them to the data or
// to the config: a run then needs neither of them again. Other recipes are unchanged.
recipe::Recipe with_transformer_sizes(recipe::Recipe recipe);

}  // namespace trestle::train
