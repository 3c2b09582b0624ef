#pragma once

#include <filesystem>
#include <string>

// Internal to the readers.
namespace trestle::data {

// The .npy file that a zip archive holds as "<name>.npy"; without a name, the only one. Throws
// FileError, and FormatError if there is none (the message lists the existing ones) or it is
// damaged.
std::string read_npz_entry(const std::filesystem::path& file, const std::string& name);

}  // namespace trestle::data
