#pragma once

#include <optional>
#include <string>

#include "trestle/recipe/recipe.h"
#include "trestle/train/data_sets/synthesize_data.h"
#include "trestle/train/data_sets/user_parts.h"
#include "trestle/train/progress/progress.h"

// Chooses between real and synthetic data.
namespace trestle::train {

// The recipe's [data]. If the data are missing and it sets `synthesize`, the paths are those of
// synthetic data in a folder of their own, which are synthesized first unless the folder exists; a
// note reports it. Values that only the files have, such as the class of each mask value, are
// filled in. Throws UsageError if that folder has other data than the recipe requests, StateError
// where another process synthesizes them, or when `on_synthesized` stops it.
recipe::Recipe::Data find_data(const recipe::Recipe& recipe, Progress& progress,
                               const UserParts& own = {},
                               const SynthesisProgress& on_synthesized = {});

// The same without synthesis and without notes: the recipe's own [data] if neither real nor
// synthetic data exist.
recipe::Recipe::Data data_that_are_there(const recipe::Recipe& recipe, const UserParts& own = {});

// The folder of the synthetic data that the recipe trains on; nothing for real data.
std::optional<std::string> synthetic_data_of(const recipe::Recipe& recipe,
                                             const UserParts& own = {});

}  // namespace trestle::train
