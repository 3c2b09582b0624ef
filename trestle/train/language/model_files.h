#pragma once

#include <filesystem>

#include "trestle/models/transformer/config.h"
#include "trestle/recipe/recipe.h"

// The files of a run folder that describe its language model. Not installed.
namespace trestle::train {

// Writes config.json and, where the data have one, the folder tokenizer/: with best.safetensors
// they are all that generation needs. Throws FileError.
void write_model_files(const recipe::Recipe& recipe, const std::filesystem::path& run_folder);

// Throws UsageError, with both hashes, if the recipe's token files are of another tokenizer than
// the run's: their ids mean other words. `weights` are a file or a checkpoint in the run's folder.
void check_tokens_of_run(const recipe::Recipe& recipe, const std::filesystem::path& weights);

}  // namespace trestle::train
