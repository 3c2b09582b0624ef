#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>

// Folders that hold synthetic data and nothing else, and say so: SYNTHETIC.txt in the folder, and a
// hidden copy (.synthetic) in each folder within it.
namespace trestle::data {

// Makes the folder `out`. `write` fills an empty folder beside it, which gets the marker and is then
// renamed: `out` is whole or not there, and nobody's data are written over. `what` is what the
// marker says of them. Throws UsageError where `out` has something in it already, StateError where
// another process is making it, FileError where the system refuses.
void make_synthetic_folder(const std::filesystem::path& out, const std::string& what,
                           const std::function<void(const std::filesystem::path&)>& write);

// What the marker in the folder says of its data, as "6000 digits, seed 42"; nothing for a folder
// of real data, or for none.
std::optional<std::string> synthetic_data_in(const std::filesystem::path& folder);

}  // namespace trestle::data
