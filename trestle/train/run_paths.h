#pragma once

#include <filesystem>
#include <string>

#include "trestle/recipe/recipe.h"
#include "trestle/train/run_folder.h"

// A run's recipe names its data as they were seen from the directory that the run was started in.
// Where that lies, as seen from the run's folder ("../.."), is kept in its environment.json: a
// command may be given from anywhere, and a run and its data may be moved together. Not installed.
namespace trestle::train {

// The current directory, as seen from a run's folder.
std::string current_directory_from(const std::filesystem::path& run_folder);

// The run's recipe with the paths of its data as they are seen from the current directory: those
// that are there where the run was started. Others stay as they are, so a run that was moved away
// from its data finds them where its recipe says, seen from here.
recipe::Recipe seen_from_here(const RunFolder& folder, recipe::Recipe recipe);

// Whether both name the same places for their data, however they write them: "cars/" is "cars".
bool same_places(const recipe::Recipe& a, const recipe::Recipe& b);

}  // namespace trestle::train
