#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

// Folders that contain only synthetic data, with a marker: SYNTHETIC.txt in the folder, and a
// hidden copy (.synthetic) in each folder within it.
namespace trestle::data {

// Creates the folder `out`. `write` fills an empty folder next to it, which gets the marker and is
// then renamed: `out` is complete or does not exist, and no existing data are overwritten. `what`
// is the marker's description of the data. Throws UsageError if `out` is not empty, StateError if
// another process is creating it, FileError if the system rejects it.
void make_synthetic_folder(const std::filesystem::path& out, const std::string& what,
                           const std::function<void(const std::filesystem::path&)>& write);

// The marker's description of the data, such as "6000 digits, seed 42"; nothing for a folder of
// real data, or for no folder.
std::optional<std::string> synthetic_data_in(const std::filesystem::path& folder);

}  // namespace trestle::data
