#pragma once

#include <string>

#include "trestle/recipe/recipe_fields.h"
#include "trestle/train/user_parts.h"

// What --help and docs/recipes.md say of a recipe's field.
namespace trestle::train {

// The field's help, and where it names an entry of a table (a model, a data set, a schedule, an
// optimizer, a loss, a metric) the names that the table has, and those of the program's own.
std::string help_of(const recipe::Field& field, const UserParts& own = {});

}  // namespace trestle::train
