#pragma once

#include <cstdint>
#include <vector>

#include "trestle/recipe/recipe.h"
#include "trestle/train/user_parts.h"

namespace trestle::train {

// Sizes of one example of a recipe's data as its model gets it, without the batch: those of the first one, or, where the
// data are not there, those that the data set usually has. Throws as opening them does.
std::vector<std::int64_t> example_sizes(const recipe::Recipe& recipe, const UserParts& own = {});

}  // namespace trestle::train
