#pragma once

#include <optional>
#include <string>

#include "trestle/models/model.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/levels/levels.h"

namespace trestle::cli {

// Nothing for a model that no tensor ranks split: `why` then says why, or stays empty for a model
// that is not a transformer. Whole blocks or attention may be recomputed.
std::optional<train::TensorLevel> tensor_level(const recipe::Recipe& recipe,
                                               const train::LevelsOptions& options,
                                               const models::OwnModels& own, std::string* why);

}  // namespace trestle::cli
