#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "trestle/recipe/recipe.h"

// How ranks that a launcher started anew (--max-restarts) find the run that they began. Not installed.
namespace trestle::train {

// What names this launch, the same in all its restarts; empty where no launcher that restarts ranks
// started this process.
std::string launch_name();

// Whether this process stands for one of the same launch that failed.
bool is_started_anew();

// Writes into a run's folder which launch made it and from which recipe, as it was asked for: one
// launch may train several. Nothing where there is no launch.
void note_launch(const std::filesystem::path& run_folder, const recipe::Recipe& recipe);

// The folder that this launch made for this recipe.
std::optional<std::filesystem::path> folder_of_launch(const recipe::Recipe& recipe);

}  // namespace trestle::train
