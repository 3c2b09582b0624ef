#pragma once

#include <filesystem>
#include <optional>
#include <string>

#include "trestle/recipe/recipe.h"

// Finds the run of ranks that a launcher restarted (--max-restarts). Not installed.
namespace trestle::train {

// The name of this launch, the same in all its restarts; empty if no restarting launcher started
// this process.
std::string launch_name();

// Whether this process replaces a failed one of the same launch.
bool is_started_anew();

// Stores in a run's folder its launch and its recipe as requested: one launch may train several
// recipes. Does nothing without a launch.
void note_launch(const std::filesystem::path& run_folder, const recipe::Recipe& recipe);

// The folder that this launch made for this recipe.
std::optional<std::filesystem::path> folder_of_launch(const recipe::Recipe& recipe);

}  // namespace trestle::train
