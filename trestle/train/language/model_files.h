#pragma once

#include <filesystem>

#include "trestle/models/transformer/config.h"
#include "trestle/recipe/recipe.h"

// The files of a run folder that describe its language model. Not installed.
namespace trestle::train {

// Writes config.json, with the end token of the text, and, where the data have one, the folder
// tokenizer/: with best.safetensors they are all that generation needs. Throws FileError.
void write_model_files(const recipe::Recipe& recipe, const std::filesystem::path& run_folder);

}  // namespace trestle::train
