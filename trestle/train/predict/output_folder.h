#pragma once

#include <filesystem>
#include <string>
#include <vector>

// Inside of the trainer. Not installed.
namespace trestle::train {

// Throws UsageError if `out` is the folder of the images: the next prediction would read what this
// one writes there as images.
void refuse_folder_of_images(const std::filesystem::path& images, const std::filesystem::path& out);

// The names of the files' results. `names` has one for each file; files with equal names keep their
// whole file names instead.
std::vector<std::string> distinct_names(const std::vector<std::filesystem::path>& files,
                                        std::vector<std::string> names);

}  // namespace trestle::train
