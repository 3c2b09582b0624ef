#pragma once

#include <optional>
#include <string>

#include "trestle/recipe/recipe.h"
#include "trestle/train/progress.h"
#include "trestle/train/synthesize_data.h"
#include "trestle/train/user_parts.h"

// Real data, or synthetic ones: which of them a run trains on.
namespace trestle::train {

// The recipe's [data]. Where nothing of it is there and it says `synthesize`, the same with the paths
// of synthetic data in a folder of their own, which are made first unless they are there, whole or
// not at all; a note says so. Throws UsageError where that folder has other data than the recipe
// asks for, StateError where another process is making them, or `making` gives up. What only the
// files can say, as which value of a mask is which class, is filled in.
recipe::Recipe::Data find_data(const recipe::Recipe& recipe, Progress& progress,
                               const UserParts& own = {},
                               const SynthesisProgress& on_synthesized = {});

// The same without making any or saying anything: the recipe's [data] itself where neither real nor
// synthetic ones are there.
recipe::Recipe::Data data_that_are_there(const recipe::Recipe& recipe, const UserParts& own = {});

// Where the synthetic data lie that the recipe trains on; nothing for real data.
std::optional<std::string> synthetic_data_of(const recipe::Recipe& recipe,
                                             const UserParts& own = {});

}  // namespace trestle::train
