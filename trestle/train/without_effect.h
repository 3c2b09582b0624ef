#pragma once

#include <string>
#include <vector>

#include "trestle/recipe/recipe.h"
#include "trestle/recipe/recipe_fields.h"
#include "trestle/train/data_sets/user_parts.h"

// Keys of a recipe that this recipe does not read: 'folder' of another kind of data, 'milestones'
// of a constant learning rate, 'momentum' of adam. Not installed.
namespace trestle::train {

// Why the field has no effect, to follow "has no effect ": "for the optimizer 'adam'". Empty if it
// has one, or may have one.
std::string why_without_effect(const recipe::Recipe& recipe, const recipe::Field& field,
                               const UserParts& own = {});

// Throws UsageError if one of the fields that a caller has set has no effect in any of the recipes,
// which have the values already. `fields` are names as for recipe::find_field(). The default value
// of a field is never refused: it sets nothing.
void refuse_without_effect(const std::vector<recipe::Recipe>& recipes,
                           const std::vector<std::string>& fields, const UserParts& own = {});

// "note      'momentum' in [optimizer] has no effect for the optimizer 'adam'" for each such key of
// a file, apart from the fields in `set`.
std::vector<std::string> notes_without_effect(const recipe::Recipe& recipe,
                                              const std::vector<std::string>& set,
                                              const UserParts& own = {});

}  // namespace trestle::train
