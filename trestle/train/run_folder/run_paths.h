#pragma once

#include <filesystem>
#include <string>

#include "trestle/recipe/recipe.h"
#include "trestle/train/run_folder/run_folder.h"

// Paths of a run's data. Its recipe names them relative to the directory in which the run was
// started. That directory, relative to the run's folder ("../.."), is stored in environment.json,
// so that a command works from any directory, and a run and its data may be moved together. Not
// installed.
namespace trestle::train {

// The current directory, relative to a run's folder.
std::string current_directory_from(const std::filesystem::path& run_folder);

// The run's recipe with the paths of its data relative to the current directory, for paths that
// exist relative to where the run was started. Other paths are unchanged, so that a run that was
// moved away from its data finds them by the recipe's own paths.
recipe::Recipe seen_from_here(const RunFolder& folder, recipe::Recipe recipe);

// Whether both recipes name the same places for their data: "cars/" is "cars".
bool same_places(const recipe::Recipe& a, const recipe::Recipe& b);

}  // namespace trestle::train
