#pragma once

#include "trestle/checkpoint/weights.h"
#include "trestle/device/named_tensors.h"
#include "trestle/recipe/recipe.h"
#include "trestle/train/progress/progress.h"

// Initial weights from the file of `weights` in [model]. Not installed.
namespace trestle::train {

// Throws UsageError if the file does not exist, FormatError if it holds no weights. Called before
// any data are read or synthesized.
void check_initial_weights(const recipe::Recipe& recipe);

// Loads the file of `weights` into these parameters and buffers: language models also from files of
// Hugging Face and GGUF. Throws as checkpoint::load_weights().
checkpoint::LoadReport load_weights_of(const recipe::Recipe& recipe, const NamedTensors& model,
                                       const checkpoint::LoadOptions& options);

// Loads the file into the model's parameters and buffers and reports the result. Does nothing if
// the recipe names no file.
void load_initial_weights(const recipe::Recipe& recipe, const NamedTensors& model,
                          Progress& progress);

}  // namespace trestle::train
