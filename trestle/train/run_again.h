#pragma once

#include <filesystem>
#include <optional>
#include <string>

// How ranks that a launcher started anew (--max-restarts) find the run that they began. Not installed.
namespace trestle::train {

// What names this launch, the same in all its restarts; empty where no launcher that restarts ranks
// started this process.
std::string launch_name();

// Writes the name into a run's folder; nothing where there is none.
void note_launch(const std::filesystem::path& run_folder);

// The folder among `runs` that this launch made.
std::optional<std::filesystem::path> folder_of_launch(const std::filesystem::path& runs);

}  // namespace trestle::train
