#pragma once

#include <filesystem>
#include <string>

// Inside of the readers. Not installed.
namespace trestle::data {

// The .npy file that a zip archive holds under "<name>.npy"; with no name, the only one. Throws
// FileError, and FormatError where there is none (naming those that there are) or it is damaged.
std::string read_npz_entry(const std::filesystem::path& file, const std::string& name);

}  // namespace trestle::data
