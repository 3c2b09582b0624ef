#pragma once

#include "trestle/models/transformer/config.h"
#include "trestle/recipe/recipe.h"

// The work of training a language model, by its sizes. Not installed.
namespace trestle::train {

// The floating-point operations that training spends on a token of a row of `row` tokens, forward
// and backward, without recomputation: 6 N + 12 L H Q T (Chowdhery et al. 2022, "PaLM", appendix
// B), for N parameters, L blocks, H heads of size Q, and T tokens in a row. A table that the head
// shares counts once, and padded rows do not.
//
//   flops_per_token(models::named_config("gpt2"), 1024);  // 859'885'056
double flops_per_token(const models::TransformerConfig& config, std::int64_t row);

// The same for a recipe. With adapters the model's own weights get no gradients: 4 N instead of
// 6 N, and the adapters do not count. 0 for models and data without tokens.
double flops_per_token(const recipe::Recipe& recipe);

}  // namespace trestle::train
