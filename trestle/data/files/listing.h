#pragma once

#include <filesystem>
#include <vector>

// Internal to the readers.
namespace trestle::data {

// The files of a folder, sorted, without hidden ones (".DS_Store"), skipped_files_of() and folders.
// Throws UsageError
// if there is no such folder, FileError if it cannot be read, and FormatError for a pipe or a
// device in it.
std::vector<std::filesystem::path> files_of(const std::filesystem::path& folder);

// Files that Windows writes into folders of pictures (Thumbs.db, desktop.ini), sorted: they are no
// examples.
std::vector<std::filesystem::path> skipped_files_of(const std::filesystem::path& folder);

// The folders in a folder, as above.
std::vector<std::filesystem::path> folders_of(const std::filesystem::path& folder);

}  // namespace trestle::data
