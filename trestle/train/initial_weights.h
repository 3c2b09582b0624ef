#pragma once

#include "trestle/device/named_tensors.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/progress/progress.h"

// Initial weights from the file of `weights` in [model]. Not installed.
namespace trestle::train {

// Throws UsageError if the file does not exist, FormatError if it holds no weights. Called before
// any data are read or synthesized.
void check_initial_weights(const recipe::Recipe& recipe);

// Loads the file into the model's parameters and buffers and reports the result. Does nothing if
// the recipe names no file.
void load_initial_weights(const recipe::Recipe& recipe, const NamedTensors& model,
                          Progress& progress);

}  // namespace trestle::train
