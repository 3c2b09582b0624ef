#pragma once

#include <cstdint>
#include <vector>

#include "trestle/recipe/recipe.h"
#include "trestle/train/data_sets/user_parts.h"

namespace trestle::train {

// The sizes of one input of the model without the batch dimension: of the first example, or the
// usual ones of the data set if the data are missing. Throws what opening the data throws.
std::vector<std::int64_t> example_sizes(const recipe::Recipe& recipe, const UserParts& own = {});

}  // namespace trestle::train
