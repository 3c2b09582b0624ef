#pragma once

#include <string>

#include "trestle/recipe/recipe_fields.h"
#include "trestle/train/data_sets/user_parts.h"

// Help texts of recipe fields for --help and docs/recipes.md.
namespace trestle::train {

// The field's help, with the names of the table that it refers to (models, data sets, schedules,
// optimizers, losses, metrics) and those of the program.
std::string help_of(const recipe::Field& field, const UserParts& own = {});

}  // namespace trestle::train
