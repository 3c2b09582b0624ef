#pragma once

#include "trestle/device/named_tensors.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/progress.h"

// The weights that a run begins with, where `weights` in [model] names a file. Not installed.
namespace trestle::train {

// Throws UsageError where there is no such file, FormatError where it holds no weights: a look at
// the file alone, before any data are read or made.
void check_initial_weights(const recipe::Recipe& recipe);

// Reads the file into the model's parameters and buffers, and says how it went. Does nothing where
// the recipe names none.
void load_initial_weights(const recipe::Recipe& recipe, const NamedTensors& model,
                          Progress& progress);

}  // namespace trestle::train
