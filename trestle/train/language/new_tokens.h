#pragma once

#include <cstdint>
#include <string>

#include "trestle/recipe/recipe.h"
#include "trestle/tokens/files/token_set.h"

// Tokens that a text has and the weights of its model do not. Not installed.
namespace trestle::train {

// Checks that the text of a recipe was written with the tokenizer of its weights, or with that one
// and added tokens (`trestle text prepare --add-token`). Throws UsageError for another tokenizer,
// and for added tokens whose rows the recipe freezes.
void check_text_of_weights(const recipe::Recipe& recipe, const tokens::TokenSet& set);

// Throws the UsageError for rows of new tokens beside adapters. `file` is the message's place.
[[noreturn]] void refuse_frozen_new_tokens(std::int64_t count, const std::string& file);

}  // namespace trestle::train
